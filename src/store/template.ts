/**
 * The fresh database with Baton's schema that the build leaves in dist/ (scripts/template.mjs): unpacking it
 * takes a fraction of the time and memory of making one. Without it a first start is slower, nothing else.
 */
import {
  closeSync,
  createReadStream,
  existsSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  writeSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { fileURLToPath } from 'node:url'
import { createGunzip } from 'node:zlib'

/** Compiled, this file is dist/src/store/template.js. */
const TEMPLATE = fileURLToPath(new URL('../../pglite-template.tar.gz', import.meta.url))
const CONTENTS = new URL('../../pglite-template.json', import.meta.url)

type Applied = readonly { name: string; sha256: string }[]

/** The archive's path; null if there is none, or if its migrations are not the first ones of the code. */
export function readTemplate(migrations: Applied): string | null {
  try {
    const { migrations: applied } = JSON.parse(readFileSync(CONTENTS, 'utf8')) as { migrations: Applied }
    const fits = applied.every(
      ({ name, sha256 }, i) => migrations[i]?.name === name && migrations[i]?.sha256 === sha256,
    )
    return fits && existsSync(TEMPLATE) ? TEMPLATE : null
  } catch {
    return null
  }
}

const BLOCK = 512
const DIRECTORY = '5'
/**
 * Small pieces: after a large one the C library keeps the memory that is freed, and the process stays that much larger.
 */
const PIECE = 64 * 1024

/** Writes a gzipped ustar archive of files and folders into a folder that exists. */
export async function unpack(archive: string, folder: string): Promise<void> {
  let refused: unknown
  await pipeline(
    createReadStream(archive, { highWaterMark: PIECE }),
    createGunzip({ chunkSize: PIECE }),
    async (pieces: AsyncIterable<Buffer>) => {
      const entries = createEntries(folder)
      try {
        for await (const piece of pieces) entries.add(piece)
      } catch (failure) {
        refused = failure
        throw failure
      } finally {
        entries.close()
      }
    },
  ).catch((failure: unknown) => {
    // The pipeline says only that it was aborted.
    throw refused ?? failure
  })
}

/** Takes an archive in pieces of any size. Call `close` when it ends, also early. */
function createEntries(folder: string) {
  const made = new Set<string>()
  let kept: Buffer = Buffer.alloc(0)
  let file: OpenFile | null = null
  /** Bytes up to the next header: the file's own, and those that fill up its last block */
  let left = 0

  const make = (path: string) => {
    if (made.has(path)) return
    mkdirSync(path, { recursive: true, mode: 0o700 })
    made.add(path)
  }
  const begin = (header: Buffer) => {
    const name = text(header, 345, 155) + text(header, 0, 100)
    if (name === '') return
    const path = join(folder, name)
    if (text(header, 156, 1) === DIRECTORY) return make(path)
    make(dirname(path))
    const length = Number.parseInt(text(header, 124, 12), 8)
    file = openFile(path, length)
    left = Math.ceil(length / BLOCK) * BLOCK
  }
  const close = () => {
    file?.close()
    file = null
  }
  return {
    close,
    add(piece: Buffer): void {
      let data = kept.length > 0 ? Buffer.concat([kept, piece]) : piece
      while (data.length > 0) {
        if (left === 0) {
          close()
          if (data.length < BLOCK) break
          begin(data.subarray(0, BLOCK))
          data = data.subarray(BLOCK)
        } else {
          const some = data.subarray(0, left)
          file?.write(some)
          left -= some.length
          data = data.subarray(some.length)
        }
      }
      kept = data
    },
  }
}

interface OpenFile {
  /** What comes after its length is dropped */
  write(piece: Buffer): void
  close(): void
}

const ZEROS = Buffer.alloc(PIECE)

/** Zeros are left to the file system: nearly all of a write-ahead log's 16 MB are zeros. */
function openFile(path: string, length: number): OpenFile {
  const file = openSync(path, 'w', 0o600)
  let at = 0
  return {
    write(piece) {
      const some = piece.subarray(0, length - at)
      const isEmpty = some.compare(ZEROS, 0, some.length) === 0
      for (let done = 0; !isEmpty && done < some.length; ) {
        done += writeSync(file, some, done, some.length - done, at + done)
      }
      at += some.length
    },
    close() {
      ftruncateSync(file, length)
      closeSync(file)
    },
  }
}

function text(header: Buffer, start: number, length: number): string {
  const field = header.toString('utf8', start, start + length)
  const end = field.indexOf('\0')
  return (end === -1 ? field : field.slice(0, end)).trim()
}
