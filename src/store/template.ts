/**
 * The fresh database that the build leaves in dist/ (scripts/template.mjs): unpacking it takes a fraction
 * of the time and memory of making one. Without it a first start is slower, nothing else.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { gunzipSync } from 'node:zlib'

/** Compiled, this file is dist/src/store/template.js. */
const TEMPLATE = new URL('../../pglite-template.tar.gz', import.meta.url)

export function readTemplate(): Uint8Array | null {
  try {
    return readFileSync(TEMPLATE)
  } catch {
    return null
  }
}

const BLOCK = 512
const DIRECTORY = '5'

/** Writes a gzipped ustar archive of files and folders into a folder that exists. */
export function unpack(archive: Uint8Array, folder: string): void {
  const tar = gunzipSync(archive)
  for (let at = 0; at + BLOCK <= tar.length; ) {
    const header = tar.subarray(at, at + BLOCK)
    const name = text(header, 345, 155) + text(header, 0, 100)
    if (name === '') return
    const size = Number.parseInt(text(header, 124, 12), 8)
    const path = join(folder, name)
    at += BLOCK
    if (text(header, 156, 1) === DIRECTORY) mkdirSync(path, { recursive: true, mode: 0o700 })
    else {
      mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
      writeFileSync(path, tar.subarray(at, at + size), { mode: 0o600 })
    }
    at += Math.ceil(size / BLOCK) * BLOCK
  }
}

function text(header: Buffer, start: number, length: number): string {
  const field = header.toString('utf8', start, start + length)
  const end = field.indexOf('\0')
  return (end === -1 ? field : field.slice(0, end)).trim()
}
