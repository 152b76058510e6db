/** Ids that are written together: one statement in place of one for each. */

interface Gathering {
  add(id: string): void
  /** Writes what waits now. */
  flush(): Promise<void>
}

/** `write` gets the ids of `ms` milliseconds, each once; it must not reject. */
export function gathering(write: (ids: string[]) => Promise<void>, ms: number): Gathering {
  const ids = new Set<string>()
  let timer: NodeJS.Timeout | undefined
  const flush = async () => {
    clearTimeout(timer)
    timer = undefined
    if (ids.size === 0) return
    const batch = [...ids]
    ids.clear()
    await write(batch)
  }
  return {
    add(id) {
      ids.add(id)
      timer ??= setTimeout(() => void flush(), ms)
    },
    flush,
  }
}
