/** What the tests of the operator's rules share: a log that remembers, servers, sessions' tools. */
import { pino } from 'pino'
import type { Test } from 'tap'
import type { LogLine } from '../gateway-process.ts'
import { eventually } from '../waiting.ts'
import type { Json } from './client.ts'
import type { World } from './harness.ts'
import { startToolServer, type TestTool, type ToolServer } from './tool-server.ts'

/** A log that remembers its lines. */
export function recorder() {
  const lines: LogLine[] = []
  let raw = ''
  const log = pino(
    { level: 'trace', base: null },
    {
      write(text: string) {
        raw += text
        lines.push(JSON.parse(text))
      },
    },
  )
  /** The line, once it was written. */
  const until = (words: string): Promise<LogLine> => eventually(() => lines.find(({ msg }) => msg === words))
  return { log, lines, until, text: () => raw }
}

export async function served(t: Test, tools: Record<string, TestTool>): Promise<ToolServer> {
  const server = await startToolServer(tools)
  t.teardown(() => server.close())
  return server
}

export const mcp = (name: string, url: string, more: string) =>
  `    - {name: ${name}, transport: streamable_http, url: "${url}", ${more}}\n`
export const DYNAMIC = 'mode: dynamic, default_tool_config: {}'

export const toolsOf = async (world: World, session: string): Promise<Json[]> =>
  (await world.api.get(`/v1/sessions/${session}/tools`)).tools
export const toolOf = async (world: World, session: string, name: string): Promise<Json> =>
  (await toolsOf(world, session)).find((tool) => tool.canonical_name === name)
