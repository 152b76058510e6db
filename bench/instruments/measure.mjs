/** Figures of processes (from Linux's /proc), and figures of many samples. Times are microseconds. */
import { readdirSync, readFileSync } from 'node:fs'

export const nowUs = () => Number(process.hrtime.bigint() / 1000n)

/** The process and all processes that it started. */
export function descendants(pid) {
  try {
    const started = readdirSync(`/proc/${pid}/task`).flatMap((thread) =>
      readFileSync(`/proc/${pid}/task/${thread}/children`, 'utf8').split(' ').filter(Boolean),
    )
    return [pid, ...started.flatMap((child) => descendants(Number(child)))]
  } catch {
    return [pid]
  }
}

/** Time on a core, all threads together; zero for a process that is gone. */
export function cpuUs(pids) {
  const timesOf = function* (pid) {
    for (const thread of readdirSync(`/proc/${pid}/task`)) {
      yield readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]
    }
  }
  return sumOf(pids, timesOf) / 1000
}

export function rssKiB(pids) {
  return sumOf(pids, (pid) => [/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]])
}

function sumOf(pids, read) {
  let sum = 0
  for (const pid of pids) {
    try {
      for (const one of read(pid)) sum += Number(one)
    } catch {}
  }
  return sum
}

/** Numbers, many of them, without a heap object for each. */
export class Samples {
  length = 0
  #values = new Float64Array(1024)

  push(value) {
    if (this.length === this.#values.length) {
      const more = new Float64Array(this.length * 2)
      more.set(this.#values)
      this.#values = more
    }
    this.#values[this.length++] = value
  }

  sorted() {
    return this.#values.slice(0, this.length).sort()
  }
}

const sorted = (values) => (values instanceof Samples ? values.sorted() : Float64Array.from(values).sort())

export function quantiles(values, ...shares) {
  const all = sorted(values)
  return shares.map((share) => all[Math.max(0, Math.ceil(share * all.length) - 1)] ?? Number.NaN)
}

export function median(values) {
  const all = sorted(values)
  const middle = all.length >> 1
  if (all.length === 0) return Number.NaN
  return all.length % 2 ? all[middle] : (all[middle - 1] + all[middle]) / 2
}

/** Microseconds as milliseconds, for a table. */
export function ms(us) {
  if (us === undefined || Number.isNaN(us)) return '-'
  return (us / 1000).toFixed(us < 10_000 ? 2 : us < 100_000 ? 1 : 0)
}
