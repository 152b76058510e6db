/**
 * The fresh database with Baton's schema that the build leaves in dist/ (scripts/template.mjs): unpacking it
 * takes a fraction of the time and memory of making one. Without it a first start is slower, nothing else.
 */
import { closeSync, ftruncateSync, mkdirSync, openSync, readFileSync, writeSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { gunzipSync } from 'node:zlib'

/** Compiled, this file is dist/src/store/template.js. */
const TEMPLATE = new URL('../../pglite-template.tar.gz', import.meta.url)
const CONTENTS = new URL('../../pglite-template.json', import.meta.url)

type Applied = readonly { name: string; sha256: string }[]

/** Null where there is none, or where it was made with migrations that the code does not begin with. */
export function readTemplate(migrations: Applied): Uint8Array | null {
  try {
    const { migrations: applied } = JSON.parse(readFileSync(CONTENTS, 'utf8')) as { migrations: Applied }
    const fits = applied.every(
      ({ name, sha256 }, i) => migrations[i]?.name === name && migrations[i]?.sha256 === sha256,
    )
    return fits ? readFileSync(TEMPLATE) : null
  } catch {
    return null
  }
}

const BLOCK = 512
const DIRECTORY = '5'

/** Writes a gzipped ustar archive of files and folders into a folder that exists. */
export function unpack(archive: Uint8Array, folder: string): void {
  // Made whole at once: a gzip file ends with the size of what it holds.
  const size = Buffer.from(archive.subarray(-4)).readUInt32LE()
  const tar = gunzipSync(archive, { chunkSize: size + 1 })
  const made = new Set<string>()
  const make = (path: string) => {
    if (made.has(path)) return
    mkdirSync(path, { recursive: true, mode: 0o700 })
    made.add(path)
  }
  for (let at = 0; at + BLOCK <= tar.length; ) {
    const header = tar.subarray(at, at + BLOCK)
    const name = text(header, 345, 155) + text(header, 0, 100)
    if (name === '') return
    const length = Number.parseInt(text(header, 124, 12), 8)
    const path = join(folder, name)
    at += BLOCK
    if (text(header, 156, 1) === DIRECTORY) make(path)
    else {
      make(dirname(path))
      write(path, tar.subarray(at, at + length))
    }
    at += Math.ceil(length / BLOCK) * BLOCK
  }
}

const PAGE = Buffer.alloc(8192)

/** Zeros at the end are left to the file system: of the 16 MB of a write-ahead log they are nearly all. */
function write(path: string, content: Buffer): void {
  let end = content.length
  while (end >= PAGE.length && content.compare(PAGE, 0, PAGE.length, end - PAGE.length, end) === 0) {
    end -= PAGE.length
  }
  const file = openSync(path, 'w', 0o600)
  try {
    for (let at = 0; at < end; ) at += writeSync(file, content, at, end - at)
    ftruncateSync(file, content.length)
  } finally {
    closeSync(file)
  }
}

function text(header: Buffer, start: number, length: number): string {
  const field = header.toString('utf8', start, start + length)
  const end = field.indexOf('\0')
  return (end === -1 ? field : field.slice(0, end)).trim()
}
