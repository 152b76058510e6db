/**
 * An exclusive lock on a folder: two processes on one embedded database would lose each other's writes, and PGlite does
 * not look. The kernel frees a listening socket however its process ends; a pid file would be fooled by pid 1 of every
 * container. The lock holds between processes of one machine, not over a network file system.
 */
import { randomBytes } from 'node:crypto'
import { closeSync, existsSync, mkdirSync, openSync, readdirSync, realpathSync, rmSync } from 'node:fs'
import { connect, createServer, type Server } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { sha256 } from '../chat/json.ts'

/** sun_path holds 108 bytes on Linux and 104 on macOS, the closing NUL included. */
const LONGEST_PATH = 103
const PREFIX = 'lock-'
const NAME_LENGTH = PREFIX.length + 12 + '.sock'.length

/**
 * Locks the folder; returns the function that unlocks it. Throws FolderInUse when another process has it.
 *
 * Every process first listens on a name of its own and then looks for others: of two that come at once, at least one
 * sees the other and steps back. Names are never reused, so a dead one may be removed at any time.
 */
export async function lockFolder(folder: string): Promise<() => Promise<void>> {
  const place = placeFor(folder)
  try {
    for (let tries = 0; tries < 5; tries++) {
      const name = `${PREFIX}${randomBytes(6).toString('hex')}.sock`
      const server = await listen(join(place.path, name))
      if (!(await someoneElse(place.path, name))) return () => close(server).then(place.leave)
      await close(server)
      // Two that stepped back for each other come again at different times.
      if (tries < 4) await sleep(20 + Math.random() * 80)
    }
    throw new FolderInUse(folder)
  } catch (failure) {
    place.leave()
    throw failure
  }
}

/** Another process has the folder. */
export class FolderInUse extends Error {
  constructor(folder: string) {
    super(
      `The data folder ${folder} is in use by another Baton process. Stop that one, give this one its own BATON_DATA_DIR, or use DATABASE_URL to share one database.`,
    )
    this.name = 'FolderInUse'
  }
}

/** A short path to where the sockets are, good until `leave` is called. */
interface Place {
  path: string
  leave(): void
}

/**
 * Always the folder itself if possible: others may know it by another path, as through a link or in a container, or
 * have another temporary folder. Linux has a short path to every open file. Elsewhere, if the folder's own path is too
 * long for a socket, a folder in /tmp takes its place: TMPDIR may be another one for each process, and too long itself.
 */
function placeFor(folder: string): Place {
  if (Buffer.byteLength(folder) + 1 + NAME_LENGTH <= LONGEST_PATH) return { path: folder, leave() {} }
  const file = openSync(folder, 'r')
  const path = `/proc/self/fd/${file}`
  if (existsSync(path)) return { path, leave: () => closeSync(file) }
  closeSync(file)
  const hash = sha256(realpathSync(folder)).slice(0, 16)
  const place = `/tmp/baton-${hash}`
  mkdirSync(place, { recursive: true, mode: 0o700 })
  return { path: place, leave() {} }
}

const listen = (path: string) =>
  new Promise<Server>((resolve, reject) => {
    const server = createServer((socket) => socket.destroy())
    server.once('error', reject)
    server.listen(path, () => resolve(server.unref()))
  })

const close = (server: Server) => new Promise<void>((resolve) => server.close(() => resolve()))

async function someoneElse(place: string, own: string): Promise<boolean> {
  const names = readdirSync(place).filter((name) => name.startsWith(PREFIX) && name !== own)
  const alive = await Promise.all(names.map((name) => isAlive(join(place, name))))
  return alive.includes(true)
}

const isAlive = (path: string) =>
  new Promise<boolean>((resolve) => {
    const socket = connect(path, () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', (err: NodeJS.ErrnoException) => {
      // Nobody listens there any more. Anything else (a full backlog, no permission) counts as alive.
      const isDead = err.code === 'ECONNREFUSED' || err.code === 'ENOENT'
      if (isDead) rmSync(path, { force: true })
      resolve(!isDead)
    })
  })
