/**
 * Memory of the replicas while a run lasts, judged by its floor: the least used heap over a while is what no
 * collection frees. Resident memory is shown, and not judged: the engine keeps memory that it once had.
 */
import type { Replica } from './replica.ts'

export interface MemoryLife {
  replica: string
  seconds: number
  /** Floors of the used heap in MiB, in the second and the last third of what was watched: in the first caches fill */
  early: number
  late: number
  /** Resident MiB: the mean of the same thirds */
  rssEarly: number
  rssLate: number
  grew: boolean
}

interface MemoryWatch {
  /** Ends the watch, and gives the floors of every process that lived long enough to be judged. */
  stop(): MemoryLife[]
}

interface Sample {
  at: number
  heap: number
  rss: number
}

const EVERY_MS = 2_000
/** Code is compiled at first: that is no leak. */
const WARM_UP_MS = 30_000
/** A shorter watch says nothing. */
const LEAST_MS = 60_000
/** How much the floor may grow from the second third to the last. */
const SLACK_MIB = 16
const SLACK_SHARE = 1.25

export function watchMemory(replicas: readonly Replica[]): MemoryWatch {
  const lives = new Map<string, { replica: string; samples: Sample[] }>()
  const look = async (replica: Replica) => {
    const pid = replica.pid()
    const memory = await memoryOf(replica)
    if (pid === null || memory === null || pid !== replica.pid()) return
    const key = `${replica.name} ${pid}`
    const life = lives.get(key) ?? { replica: replica.name, samples: [] }
    lives.set(key, life)
    life.samples.push({ at: Date.now(), ...memory })
  }
  const timer = setInterval(() => {
    for (const replica of replicas) void look(replica)
  }, EVERY_MS)
  timer.unref()
  return {
    stop() {
      clearInterval(timer)
      return [...lives.values()].flatMap(({ replica, samples }) => judged(replica, samples))
    },
  }
}

/** MiB; null when the replica does not answer. */
export async function memoryOf({ url }: Replica): Promise<{ heap: number; rss: number } | null> {
  const page = await fetch(`${url}/metrics`, { signal: AbortSignal.timeout(EVERY_MS) }).then(
    (response) => response.text(),
    () => '',
  )
  const read = (name: string) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(page)?.[1]) / 2 ** 20
  const heap = read('nodejs_heap_size_used_bytes') + read('nodejs_external_memory_bytes')
  const rss = read('process_resident_memory_bytes')
  return Number.isNaN(heap + rss) ? null : { heap, rss }
}

function judged(replica: string, samples: readonly Sample[]): MemoryLife[] {
  const from = (samples[0]?.at ?? 0) + WARM_UP_MS
  const warm = samples.filter(({ at }) => at >= from)
  const ms = (warm.at(-1)?.at ?? 0) - (warm[0]?.at ?? 0)
  if (ms < LEAST_MS) return []
  const third = Math.floor(warm.length / 3)
  const [before, last] = [warm.slice(third, -third), warm.slice(-third)]
  const floor = (part: readonly Sample[]) => Math.min(...part.map(({ heap }) => heap))
  const mean = (part: readonly Sample[]) => part.reduce((sum, { rss }) => sum + rss, 0) / part.length
  const [early, late] = [floor(before), floor(last)]
  return [
    {
      replica,
      seconds: Math.round(ms / 1000),
      early: Math.round(early),
      late: Math.round(late),
      rssEarly: Math.round(mean(before)),
      rssLate: Math.round(mean(last)),
      grew: late > early * SLACK_SHARE + SLACK_MIB,
    },
  ]
}

export const inWords = ({ replica, seconds, early, late, rssEarly, rssLate }: MemoryLife): string =>
  `${replica} over ${seconds} s: heap floor ${early} → ${late} MiB, resident ${rssEarly} → ${rssLate} MiB`
