/**
 * The client under test of the MCP conformance suite: Baton's own door, driven by one generic path for
 * all scenarios. Usage: client.js <url of the scenario's server>; see `run` for the environment.
 */
import { createMcp, McpError, type McpServerSpec, type McpTool } from '../../src/mcp/mcp.ts'

interface ScenarioContext {
  toolCalls?: { name: string; arguments?: Record<string, unknown> }[]
}

const url = process.argv.at(-1) ?? ''
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}') as ScenarioContext

// Elicitation is not declared by Baton itself; the suite wants to see that it could be answered.
const mcp = createMcp({ version: '0.0.0', elicit: async () => ({ action: 'accept', content: {} }) })
const spec: McpServerSpec = { key: 'conformance', name: 'conformance', transport: 'streamable_http', url, allowPrivate: true }

/** A value for every required argument, so that a call passes the server's own check of its input. */
function argumentsFor(tool: McpTool): Record<string, unknown> {
  const samples: Record<string, unknown> = { integer: 1, number: 1, boolean: true, array: [], object: {} }
  const properties = (tool.inputSchema.properties ?? {}) as Record<string, { type?: string }>
  return Object.fromEntries(
    Object.entries(properties).map(([name, { type }]) => [name, samples[type ?? 'string'] ?? 'text']),
  )
}

try {
  mcp.interest(spec.key, spec, Date.now() + 60_000)
  const { tools } = await mcp.list(spec, { timeoutMs: 20_000 })
  const calls = context.toolCalls ?? tools.map((tool) => ({ name: tool.name, arguments: argumentsFor(tool) }))
  for (const call of calls) {
    const options = { timeoutMs: 10_000, maxTotalMs: 20_000, signal: new AbortController().signal }
    const result = await mcp.call(spec, call.name, call.arguments ?? {}, options).catch((error) => {
      // A refused call is an answer; the suite judges what the server saw.
      if (error instanceof McpError) return error.message
      throw error
    })
    console.log(call.name, JSON.stringify(result))
  }
} finally {
  await mcp.close()
}
