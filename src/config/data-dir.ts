/** The folder BATON_DATA_DIR, made ready before anything is kept in it. */
import { existsSync, mkdirSync, mkdtempSync, rmdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { inFull } from '../errors.ts'
import { ConfigError } from './load.ts'

/** Makes the folder if it does not exist. Throws ConfigError if nothing can be made in it. */
export function makeDataDir(folder: string): void {
  try {
    makeFolder(folder)
    // Access rights tell little: root has them all even on a read-only disk, and below /proc nothing can ever be made.
    rmdirSync(mkdtempSync(join(folder, 'probe-')))
  } catch (failure) {
    throw unusable(folder, failure)
  }
}

/** The error of a data folder, or of a file in it, that cannot be used, with the remedy. */
export function unusable(path: string, failure: unknown): ConfigError {
  const problem = `Baton cannot keep its data in ${path} (${inFull(failure)})`
  const remedy = 'Name a folder on a local disk that Baton may write to, or use DATABASE_URL'
  return new ConfigError([{ path: 'BATON_DATA_DIR', problem, remedy }])
}

/**
 * Makes parents one by one: Node's `recursive` option retries for ever if a folder is refused with ENOENT, as below
 * /proc.
 */
function makeFolder(folder: string): void {
  if (existsSync(folder)) return
  makeFolder(dirname(folder))
  try {
    mkdirSync(folder, { mode: 0o700 })
  } catch (err) {
    // Another process has made it meanwhile.
    if ((err as NodeJS.ErrnoException).code !== 'EEXIST') throw err
  }
}
