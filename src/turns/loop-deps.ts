/**
 * What a turn's loop works with. A store that is away for some seconds costs a running turn nothing but time: what the
 * loop asks of the store, also through other parts, is asked again until the store answers. These calls may be repeated
 * (a commit is known by its messages' ids), and nobody but the turn waits for them. New requests are refused at once
 * instead.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { Message } from '../chat/message.ts'
import { isUnavailable } from '../errors.ts'
import type { EngineDeps } from './deps.ts'

/** Longer than a failover; after it the turn is left to the process that recovers it. */
export const PATIENCE_MS = 90_000
const [FIRST_PAUSE_MS, LONGEST_PAUSE_MS] = [50, 2_000]

/** Repeats the work while the store is away. */
export async function patiently<T>(log: Logger, work: () => Promise<T>): Promise<T> {
  const until = performance.now() + PATIENCE_MS
  for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(pause * 2, LONGEST_PAUSE_MS)) {
    try {
      return await work()
    } catch (thrown) {
      if (!isUnavailable(thrown) || performance.now() > until) throw thrown
      // Once per wait: else each of a thousand turns would log it every two seconds.
      if (pause === FIRST_PAUSE_MS) log.debug({ err: thrown }, 'the store is away; the turn waits')
      await sleep(pause)
    }
  }
}

/** What the engine gives its loops besides its own deps. */
export interface FromEngine {
  /** Turns leave at the next step boundary. */
  isDraining(): boolean
  /** The end of this turn is in the stream. */
  noteEndAnnounced(turn: string): void
  /** Keeps the history for the session's next turn here. */
  keepHistory(session: string, rewrites: number, messages: readonly Message[]): void
}

export type LoopDeps = ReturnType<typeof createLoopDeps>

/** The loop has only these verbs of the store: one more must be added here. */
export function createLoopDeps(deps: EngineDeps, given: FromEngine) {
  const { log, tools, credentials } = deps
  const { sessions, turns, messages, executions, connectors } = deps.store

  /** The named verbs, each repeated while the store is away. */
  function patient<Name extends string, Verbs extends Record<Name, Verb>>(verbs: Verbs, ...names: Name[]) {
    const made = names.map((name) => [name, (...args: never[]) => patiently(log, () => verbs[name](...args))])
    // Under each name is a function with the verb's type.
    return Object.fromEntries(made) as Pick<Verbs, Name>
  }

  return {
    ...deps,
    ...given,
    store: {
      sessions: patient(sessions, 'ofTurn'),
      turns: {
        ...patient(turns, 'commit', 'readStep'),
        // Not repeated: the scan does it as well.
        forgetAnnouncements: turns.forgetAnnouncements,
      },
      messages: patient(messages, 'after', 'newest'),
      executions: patient(executions, 'begin', 'putBack', 'settle', 'ofTurn'),
      connectors: patient(connectors, 'bindings'),
    },
    tools: { ...tools, ...patient(tools, 'bringUpToDate', 'current', 'newest') },
    credentials: {
      async resolve(...args: Parameters<typeof credentials.resolve>) {
        const credential = await patiently(log, () => credentials.resolve(...args))
        const { secret, onUnauthorized, complete } = credential
        return {
          ...credential,
          secret: () => patiently(log, secret),
          ...(onUnauthorized && { onUnauthorized: () => patiently(log, onUnauthorized) }),
          ...(complete && { complete: () => patiently(log, complete) }),
        }
      },
    },
  }
}

type Verb = (...args: never[]) => Promise<unknown>
