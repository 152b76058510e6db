/** Servers that are processes: how they are named, what they tell of themselves, when they are gone. */
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { McpResult, McpServerSpec } from '../../src/mcp/contract.ts'
import { eventually } from '../waiting.ts'

/** It misbehaves on demand. */
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

/** What a tool of servers/child.ts says, parsed. */
export async function told<T>(result: Promise<McpResult>): Promise<T> {
  const [part] = (await result).content
  return JSON.parse(part?.type === 'text' ? part.text : 'null') as T
}

/** Settles when the process is gone, or only waits for a parent that never reaps. */
export const ended = (pid: number): Promise<boolean> =>
  eventually(() => {
    try {
      return /^\d+ \(.*\) Z/s.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
    } catch {
      return true
    }
  })
