/** The door to MCP servers for tests. Behind it is servers/rig.ts over HTTP, or a process (processes.ts). */
import type { Test } from 'tap'
import { type Mcp, McpError, type McpResult, type McpServerSpec } from '../../src/mcp/contract.ts'
import { createMcp, type McpOptions } from '../../src/mcp/mcp.ts'
import type { Rig } from './servers/rig.ts'

/** Longer than any healthy exchange here takes on a slow machine: a test that has to wait for it fails. */
export const PATIENCE = 60_000

export function door(t: Test, options: Partial<McpOptions> = {}): Mcp {
  const mcp = createMcp({
    drainMs: 500,
    connectMs: { http: PATIENCE, stdio: PATIENCE },
    ...options,
  })
  t.teardown(() => mcp.close())
  return mcp
}

export const specOf = (rig: Pick<Rig, 'url'>, more: Partial<McpServerSpec> = {}): McpServerSpec => ({
  key: 'server:1',
  name: 'rig',
  transport: 'streamable_http',
  url: rig.url,
  allowPrivate: true,
  ...more,
})

export function call(
  mcp: Mcp,
  spec: McpServerSpec,
  tool = 'tool',
  args = {},
  options: Partial<Parameters<Mcp['call']>[3]> = {},
): Promise<McpResult> {
  return mcp.call(spec, tool, args, {
    timeoutMs: PATIENCE,
    maxTotalMs: PATIENCE,
    signal: new AbortController().signal,
    ...options,
  })
}

export const list = (mcp: Mcp, spec: McpServerSpec, refresh = false): ReturnType<Mcp['list']> =>
  mcp.list(spec, { timeoutMs: PATIENCE, refresh })

/** Checks that the work fails with an McpError like the expected one. */
export async function fails(
  t: Test,
  work: Promise<unknown>,
  expected: object,
  message = 'fails',
): Promise<void> {
  const failure = await work.then(
    () => 'it succeeded',
    (error: unknown) => error,
  )
  t.type(failure, McpError, message)
  t.match(failure, expected, message)
}

export const RAN = { content: [{ type: 'text', text: 'ran' }], is_error: false }
