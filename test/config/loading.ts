/** Loads a configuration from an environment and the text of a file, in a folder that goes with the process. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ConfigError, loadConfig } from '../../src/config/load.ts'
import type { Problem } from '../../src/validation.ts'

export const empty = mkdtempSync(join(tmpdir(), 'baton-test-'))
process.once('exit', () => rmSync(empty, { recursive: true, force: true }))

/** A folder that holds this baton.yaml. */
export function folder(yaml: string | Buffer): string {
  const dir = mkdtempSync(join(empty, 'case-'))
  writeFileSync(join(dir, 'baton.yaml'), yaml)
  return dir
}
export const load = (env: Record<string, string>, yaml?: string | Buffer) =>
  loadConfig(env, yaml === undefined ? empty : folder(yaml))

export function problems(env: Record<string, string>, yaml?: string | Buffer): Problem[] {
  try {
    load(env, yaml)
  } catch (error) {
    if (error instanceof ConfigError) return [...error.problems]
    throw error
  }
  return []
}
