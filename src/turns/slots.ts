/** How many turns this process runs at once, shared fairly: round-robin over owners. */

export interface Slots {
  /** Resolves with the function that gives the slot back; rejects with the signal's reason. */
  take(owner: string, signal: AbortSignal): Promise<() => void>
  running(): number
  waiting(): number
  /** One that is taken now has to wait. */
  isFull(): boolean
}

export function createSlots(limit: number): Slots {
  /** Waiting by owner; the map's order is the order in which owners are served next */
  const queues = new Map<string, (() => void)[]>()
  let used = 0
  let waiting = 0
  const give = () => {
    used--
    const next = queues.entries().next()
    if (next.done) return
    const [owner, queue] = next.value
    queues.delete(owner)
    const grant = queue.shift()
    if (queue.length > 0) queues.set(owner, queue)
    grant?.()
  }
  const occupy = () => {
    used++
    let isGiven = false
    return () => {
      if (isGiven) return
      isGiven = true
      give()
    }
  }
  return {
    running: () => used,
    waiting: () => waiting,
    isFull: () => used >= limit,
    async take(owner, signal) {
      signal.throwIfAborted()
      if (used < limit) return occupy()
      waiting++
      try {
        return await new Promise<() => void>((resolve, reject) => {
          const grant = () => {
            signal.removeEventListener('abort', leave)
            resolve(occupy())
          }
          const leave = () => {
            const queue = queues.get(owner)?.filter((one) => one !== grant) ?? []
            if (queue.length > 0) queues.set(owner, queue)
            else queues.delete(owner)
            reject(signal.reason)
          }
          signal.addEventListener('abort', leave, { once: true })
          queues.set(owner, [...(queues.get(owner) ?? []), grant])
        })
      } finally {
        waiting--
      }
    },
  }
}
