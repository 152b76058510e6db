/** What this process holds in memory, for tests that something is let go. */
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

setFlagsFromString('--expose-gc')
const gc = runInNewContext('gc') as () => void

/** Collects more than once: an object that a finalizer lets go is garbage only then. */
export async function collect(): Promise<void> {
  for (let i = 0; i < 3; i++) {
    gc()
    await sleep(10)
  }
}

/** Bytes after a collection. */
export async function held(what: 'heapUsed' | 'arrayBuffers'): Promise<number> {
  await collect()
  return process.memoryUsage()[what]
}
