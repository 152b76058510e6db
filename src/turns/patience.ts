/**
 * A store that is away for some seconds costs a running turn nothing but time. Only the loop waits like
 * this: its reads and writes may be repeated (a commit knows itself by its messages' ids), and nobody but
 * the turn waits for them. New requests are refused at once instead.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { isUnavailable } from '../errors.ts'
import type { Store } from '../store/store.ts'
import type { EngineDeps } from './deps.ts'

/** Longer than a failover; after it the turn is left to whoever recovers it. */
const PATIENCE_MS = 90_000
const [FIRST_PAUSE_MS, LONGEST_PAUSE_MS] = [50, 2_000]

/** Repeats the work while the store is away. */
export async function patiently<T>(log: Logger, work: () => Promise<T>): Promise<T> {
  const until = performance.now() + PATIENCE_MS
  for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(pause * 2, LONGEST_PAUSE_MS)) {
    try {
      return await work()
    } catch (thrown) {
      if (!isUnavailable(thrown) || performance.now() > until) throw thrown
      // Once: of a thousand turns each would say so every two seconds.
      if (pause === FIRST_PAUSE_MS) log.debug({ err: thrown }, 'the store is away; the turn waits')
      await sleep(pause)
    }
  }
}

/** The loop's deps, their verbs that need the store each of them patient. */
export function patientDeps(deps: EngineDeps): EngineDeps {
  const patient: Patient =
    (verb) =>
    (...args) =>
      patiently(deps.log, () => verb(...args))
  const { tools, store } = deps
  return {
    ...deps,
    store: patientStore(store, patient),
    tools: {
      ...tools,
      bringUpToDate: patient(tools.bringUpToDate),
      current: patient(tools.current),
      newest: patient(tools.newest),
    },
  }
}

type Patient = <A extends unknown[], R>(verb: (...args: A) => Promise<R>) => (...args: A) => Promise<R>

function patientStore(store: Store, patient: Patient): Store {
  const { sessions, turns, messages, executions, connectors } = store
  return {
    ...store,
    sessions: { ...sessions, ofTurn: patient(sessions.ofTurn) },
    turns: { ...turns, commit: patient(turns.commit), readStep: patient(turns.readStep) },
    messages: { ...messages, after: patient(messages.after) },
    executions: {
      ...executions,
      begin: patient(executions.begin),
      settle: patient(executions.settle),
      ofTurn: patient(executions.ofTurn),
    },
    connectors: { ...connectors, bindings: patient(connectors.bindings) },
  }
}
