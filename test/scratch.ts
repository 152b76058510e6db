import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'

/** An empty folder, deleted with the test. */
export function scratch(t: Test): string {
  const folder = mkdtempSync(join(tmpdir(), 'baton-test-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}
