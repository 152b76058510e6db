/** The door to servers that are processes, as tests go through it; servers/child.ts misbehaves on demand. */
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import type { Mcp, McpResult, McpServerSpec } from '../../src/mcp/contract.ts'
import type { McpOptions } from '../../src/mcp/mcp.ts'
import { door as anyDoor } from './door.ts'

export const CHILD = fileURLToPath(new URL('./servers/child.js', import.meta.url))
export const PATIENCE = 60_000

export const door = (t: Test, options: Partial<McpOptions> = {}): Mcp =>
  anyDoor(t, { connectMs: { http: PATIENCE, stdio: PATIENCE }, ...options })

export const child = (mode: string, more: Partial<McpServerSpec> = {}): McpServerSpec => ({
  key: mode,
  name: 'child',
  transport: 'stdio',
  command: process.execPath,
  args: [CHILD, mode],
  allowPrivate: false,
  ...more,
})

export function call(
  mcp: Mcp,
  spec: McpServerSpec,
  tool: string,
  args: Record<string, unknown> = {},
  timeoutMs = PATIENCE,
): Promise<McpResult> {
  return mcp.call(spec, tool, args, { timeoutMs, maxTotalMs: PATIENCE, signal: new AbortController().signal })
}

export const list = (mcp: Mcp, spec: McpServerSpec): ReturnType<Mcp['list']> =>
  mcp.list(spec, { timeoutMs: PATIENCE })

/** What a tool of servers/child.ts says, parsed. */
export async function told<T>(result: Promise<McpResult>): Promise<T> {
  const [part] = (await result).content
  return JSON.parse(part?.type === 'text' ? part.text : 'null') as T
}

/** Settles when the process is gone, or only waits for a parent that never reaps. */
export async function ended(pid: number): Promise<void> {
  for (const started = Date.now(); ; ) {
    if (Date.now() - started > PATIENCE / 2) throw new Error(`process ${pid} still runs`)
    try {
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
      if (/^\d+ \(.*\) Z/s.test(stat)) return
    } catch {
      return
    }
    await sleep(20)
  }
}
