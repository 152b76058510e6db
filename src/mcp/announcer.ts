/** Thins out announcements: the first is told at once, then at most one per interval and key; the last is never lost. */

/** Tells many listeners what one key announced; `stop` drops what still waits. */
interface Announcer {
  announce(key: string): void
  subscribe(fn: (key: string) => void): void
  stop(): void
}

/** An announcer that reports a key at most once in `intervalMs`. */
export function createAnnouncer(intervalMs: number): Announcer {
  const listeners = new Set<(key: string) => void>()
  const pauses = new Map<string, { isDue: boolean }>()

  const fire = (key: string): void => {
    pauses.set(key, { isDue: false })
    setTimeout(() => resume(key), intervalMs).unref()
    for (const listener of listeners) listener(key)
  }
  const resume = (key: string): void => {
    const isDue = pauses.get(key)?.isDue ?? false
    pauses.delete(key)
    if (isDue) fire(key)
  }
  return {
    announce(key) {
      const pause = pauses.get(key)
      if (pause) pause.isDue = true
      else fire(key)
    },
    subscribe: (fn) => void listeners.add(fn),
    stop() {
      pauses.clear()
      listeners.clear()
    },
  }
}
