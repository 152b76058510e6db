/**
 * A process with the MCP door, which a test kills. It starts the stdio server that its arguments name, isolated if
 * TEST_ISOLATION says so, prints the ids of the server and of its grandchild, and waits.
 */
import type { McpServerSpec } from '../../../src/mcp/contract.ts'
import { createMcp } from '../../../src/mcp/mcp.ts'
import { openSandbox } from '../../../src/mcp/sandbox.ts'

const [, , ...args] = process.argv
const isolation = process.env.TEST_ISOLATION === 'bubblewrap' ? 'bubblewrap' : 'none'
const mcp = createMcp({ sandbox: await openSandbox({ isolation, hidden: [] }) })
const spec: McpServerSpec = {
  key: 'k',
  name: 'child',
  transport: 'stdio',
  command: process.execPath,
  args,
  allowPrivate: false,
}
const pids: number[] = []
for (const tool of ['pid', 'grandchild']) {
  const signal = new AbortController().signal
  const { content } = await mcp.call(spec, tool, {}, { timeoutMs: 60_000, maxTotalMs: 60_000, signal })
  const [part] = content
  if (part?.type === 'text') pids.push(JSON.parse(part.text) as number)
}
process.stdout.write(`${JSON.stringify(pids)}\n`)
setInterval(() => {}, 1_000)
