/** An MCP server that wants a login, and the login service that it names. */
import type { Test } from 'tap'
import { startToolServer } from '../e2e/tool-server.ts'
import { createMcpLogins, type McpLogins, type McpLoginsOptions } from '../emulators/oauth-mcp.ts'

export async function guardedServer(t: Test, options: Partial<McpLoginsOptions> = {}): Promise<McpLogins> {
  const server = await startToolServer({ look: {} })
  const logins = await createMcpLogins({ upstream: server.url, ...options })
  t.teardown(() => Promise.all([logins.close(), server.close()]))
  return logins
}
