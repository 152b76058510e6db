/** Servers that are processes: their specs, what they tell of themselves, and when they are gone. */
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { McpResult, McpServerSpec } from '../../src/mcp/contract.ts'
import { eventually } from '../waiting.ts'

/** A server that misbehaves on demand. */
export const CHILD = fileURLToPath(new URL('./servers/child.js', import.meta.url))

export const child = (mode: string, more: Partial<McpServerSpec> = {}): McpServerSpec => ({
  key: mode,
  name: 'child',
  transport: 'stdio',
  command: process.execPath,
  args: [CHILD, mode],
  allowPrivate: false,
  ...more,
})

/** The result of a tool of servers/child.ts, parsed. */
export async function told<T>(result: Promise<McpResult>): Promise<T> {
  const [part] = (await result).content
  return JSON.parse(part?.type === 'text' ? part.text : 'null') as T
}

/** Settles when the process is gone, or is a zombie whose parent never reaps it. */
export const ended = (pid: number): Promise<boolean> =>
  eventually(() => {
    try {
      return /^\d+ \(.*\) Z/s.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
    } catch {
      return true
    }
  })
