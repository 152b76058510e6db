/**
 * Sessions that wait to be brought up to date, in batches: one batch is read and written together, and while it is
 * under way the next one gathers.
 */

interface Batches {
  /**
   * Settles once the session was brought up to date, by its batch or alone; rejects with the error that prevented it.
   * Calls before its batch is made share the work.
   */
  join(session: string, options?: JoinOptions): Promise<void>
  /** Whether unconditional work (no `unlessCurrent`) for the session waits or is under way. */
  isDue(session: string): boolean
}

interface JoinOptions {
  /** A turn waits for the session: it goes before all that are not urgent */
  isUrgent?: boolean
  /** If the session is up to date when the batch is made, there is nothing to do */
  unlessCurrent?: boolean
}

interface BatchWork {
  /** How much of a batch's room the session takes */
  weightOf(session: string): number
  isCurrent(session: string): boolean
  /** Does the work for all of them; answers with those that are left to be done alone. */
  together(sessions: readonly string[]): Promise<readonly string[]>
  alone(session: string): Promise<unknown>
}

interface Waiting extends JoinOptions {
  promise: Promise<void>
  done(): void
  failed(reason: unknown): void
}

/** Most of one batch: more would keep the store and the event loop busy for too long. */
const MOST = { sessions: 50, weight: 1_000 }

export function createBatches({ weightOf, isCurrent, together, alone }: BatchWork): Batches {
  const waiting = new Map<string, Waiting>()
  let underWay = new Map<string, Waiting>()
  /** Unconditional work that is done alone */
  const apart = new Map<string, Waiting>()
  let isBusy = false

  /** One batch after the other: they would only wait for each other in the store. */
  async function work(): Promise<void> {
    isBusy = true
    // Calls of the same moment go together.
    await new Promise(setImmediate)
    for (underWay = take(); underWay.size > 0; underWay = take()) await serve()
    isBusy = false
  }

  /** As many as may go together, the urgent ones first. */
  function take(): Map<string, Waiting> {
    const batch = new Map<string, Waiting>()
    let weight = 0
    const all = [...waiting]
    const ordered = [...all.filter(([, one]) => one.isUrgent), ...all.filter(([, one]) => !one.isUrgent)]
    for (const [session, one] of ordered) {
      if (one.unlessCurrent && isCurrent(session)) one.done()
      else {
        weight += weightOf(session)
        if (batch.size === MOST.sessions || (batch.size > 0 && weight > MOST.weight)) break
        batch.set(session, one)
      }
      waiting.delete(session)
    }
    return batch
  }

  async function serve(): Promise<void> {
    const sessions = [...underWay.keys()]
    // A session for which the work fails must not fail the others.
    const left = new Set(await together(sessions).catch(() => sessions))
    for (const [session, one] of underWay) {
      underWay.delete(session)
      if (left.has(session)) finishAlone(session, one)
      else one.done()
    }
  }

  function finishAlone(session: string, one: Waiting): void {
    if (!one.unlessCurrent) apart.set(session, one)
    const end = () => apart.get(session) === one && apart.delete(session)
    alone(session).finally(end).then(one.done, one.failed)
  }

  return {
    join(session, options = {}) {
      const known = waiting.get(session)
      if (known) {
        known.isUrgent ||= options.isUrgent ?? false
        known.unlessCurrent &&= options.unlessCurrent ?? false
        return known.promise
      }
      const made = settleable()
      waiting.set(session, { ...options, ...made })
      if (!isBusy) void work()
      return made.promise
    },
    isDue: (session) =>
      apart.has(session) ||
      [waiting.get(session), underWay.get(session)].some((one) => one && !one.unlessCurrent),
  }
}

/** A promise that is settled from outside. */
function settleable(): Pick<Waiting, 'promise' | 'done' | 'failed'> {
  let done: Waiting['done'] = () => {}
  let failed: Waiting['failed'] = () => {}
  const promise = new Promise<void>((resolve, reject) => {
    done = () => resolve()
    failed = reject
  })
  return { promise, done, failed }
}
