/**
 * Validates a call's arguments against the server's own schema, in a thread with a time budget. A schema that is
 * unusable or too slow does not stop the call: the server validates, too.
 */
import { Worker } from 'node:worker_threads'
import { BoundedMap } from '../../bounded-map.ts'
import { canonicalJson, isWithin, sha256 } from '../../chat/json.ts'
import { once } from '../../chat/once.ts'
import type { Findings, Job, Judgement, Misfit } from './validate-worker.ts'

export type { Misfit } from './validate-worker.ts'

interface Validator {
  /**
   * The arguments, if need be with texts read as the JSON that they hold, without nulls, and with defaults for what is
   * missing; and what does not fit: nothing when they fit, or when the schema could not be used in time.
   */
  read<T>(schema: unknown, value: T): Promise<{ problems: Misfit[]; value: T }>
  /** The problems alone */
  problems(schema: unknown, value: unknown): Promise<Misfit[]>
  close(): Promise<void>
}

/** Generous; a schema that is slower is slow on purpose. */
const BUDGET_MS = 1_000
/** All owners share the thread: a call for which it had no time in this many budgets is let through unchecked. */
const MOST_BUDGETS = 3
/** A schema is blamed only if the process had a processor for this share of the budget. */
const OWN_SHARE = 0.5
/** If it had less, the budget starts again, up to this many times in all; then the schema is given up all the same. */
const MOST_TIMES = 15
/** A thread has to load its code before it is ready. */
const START_BUDGET_MS = 15_000
/** A schema whose compilation eats memory ends the thread, not the process. */
const MEMORY = { maxOldGenerationSizeMb: 96, maxYoungGenerationSizeMb: 32 }
/** Nobody writes larger values by hand, and just copying them to the thread would be slow. */
const LIMITS = { depth: 200, bytes: 8 * 1024 * 1024 }
/** Calls that may wait for the thread; further ones are let through unchecked. */
const MOST_WAITING = 256
/** Schemas that are remembered as unusable */
const MOST_REFUSED = 10_000

interface Waiting {
  job: Job
  schema: unknown
  /** What `workedMs` was when it began to wait */
  since: number
  settle(findings: Findings): void
}

/**
 * The thread starts with the first question and ends with `close`, or with a question that takes longer than
 * `budgetMs`.
 */
export function createValidator(budgetMs = BUDGET_MS, startThread = newThread): Validator {
  let worker: Worker | null = null
  let isReady = false
  let isClosed = false
  let current: Waiting | null = null
  let stopClock = () => {}
  let count = 0
  /** When the thread got the current question */
  let sentAt: number | null = null
  /** Milliseconds that the thread has worked; its starts do not count, since they are no schema's fault */
  let workedMs = 0
  const queue: Waiting[] = []
  /** Schemas that cost a thread its life, or that it cannot use */
  const refused = new BoundedMap<true>(MOST_REFUSED)

  function start(): void {
    let fresh: Worker
    try {
      fresh = startThread()
    } catch {
      // The machine has no thread left: that is no reason to keep calls waiting, and the next one may find one.
      return done(UNCHECKED)
    }
    fresh.unref()
    fresh.on('message', (judgement: Judgement) => {
      if (fresh === worker) heard(judgement)
    })
    const gone = () => {
      if (fresh === worker) abandon()
    }
    fresh.on('error', gone)
    fresh.on('exit', gone)
    worker = fresh
    isReady = false
    const timer = setTimeout(abandon, START_BUDGET_MS)
    stopClock = () => clearTimeout(timer)
  }

  function heard(judgement: Judgement): void {
    if (judgement.id === 0) {
      isReady = true
      stopClock()
      return send()
    }
    if (current?.job.id !== judgement.id) return
    if ('unknown' in judgement) return send(current.schema)
    if ('unusable' in judgement) refused.put(current.job.key, true)
    done('problems' in judgement ? judgement : UNCHECKED)
  }

  function done(findings: Findings): void {
    stopClock()
    if (sentAt !== null) workedMs += performance.now() - sentAt
    sentAt = null
    const finished = current
    current = null
    finished?.settle(findings)
    next()
  }

  /** The schema took too long, or killed the thread: it is not used again. */
  function abandon(): void {
    if (current && isReady) refused.put(current.job.key, true)
    const late = worker
    worker = null
    void late?.terminate()
    done(UNCHECKED)
  }

  function next(): void {
    if (current || isClosed) return
    current = queue.shift() ?? null
    while (current && workedMs - current.since > MOST_BUDGETS * budgetMs) {
      current.settle(UNCHECKED)
      current = queue.shift() ?? null
    }
    if (!current) return
    if (worker && isReady) send()
    else if (!worker) start()
  }

  /** Sends the schema only if the thread asks for it: the thread knows what it has compiled and dropped since. */
  function send(schema?: unknown): void {
    if (!current || !worker) return
    stopClock()
    sentAt ??= performance.now()
    stopClock = startClock(budgetMs, abandon)
    worker.postMessage({ ...current.job, schema })
  }

  function read<T>(schema: unknown, value: T): Promise<{ problems: Misfit[]; value: T }> {
    const key = typeof schema === 'object' && schema !== null ? keyOf(schema) : ''
    const isReadable = key !== '' && !refused.get(key) && isWithin(value, LIMITS)
    if (!isReadable || isClosed || queue.length >= MOST_WAITING)
      return Promise.resolve({ problems: [], value })
    return new Promise((resolve) => {
      const settle: Waiting['settle'] = ({ problems, read = value }) =>
        resolve({ problems, value: read as T })
      queue.push({ job: { id: ++count, key, value }, schema, since: workedMs, settle })
      next()
    })
  }

  return {
    read,
    problems: async (schema, value) => (await read(schema, value)).problems,
    async close() {
      isClosed = true
      stopClock()
      const last = worker
      worker = null
      for (const { settle } of [...(current ? [current] : []), ...queue.splice(0)]) settle(UNCHECKED)
      current = null
      await last?.terminate()
    },
  }
}

const UNCHECKED: Findings = { problems: [] }

/** Without what the operator has loaded into the process: an agent there would use up MEMORY, or START_BUDGET_MS. */
const newThread = (): Worker =>
  new Worker(new URL('./validate-worker.js', import.meta.url), {
    resourceLimits: MEMORY,
    execArgv: [],
    env: {},
  })

/** A schema's hash; empty if the schema is too large to be read. */
const keyOf = once((schema: object) => (isWithin(schema, LIMITS) ? sha256(canonicalJson(schema)) : ''))

/**
 * Calls `over` when the budget is used up. Time in which this process got little of a processor is not the schema's
 * fault, and does not count. Returns the function that stops the clock.
 */
function startClock(budgetMs: number, over: () => void): () => void {
  const since = process.cpuUsage()
  let timer: NodeJS.Timeout | undefined
  let isStopped = false
  const wait = (times: number) => {
    timer = setTimeout(() => {
      // After a stall of this thread the answer may be here already: it is handled first.
      setImmediate(() => {
        if (isStopped) return
        const { user, system } = process.cpuUsage(since)
        if ((user + system) / 1000 >= budgetMs * OWN_SHARE || times === MOST_TIMES) over()
        else wait(times + 1)
      })
    }, budgetMs)
  }
  wait(1)
  return () => {
    isStopped = true
    clearTimeout(timer)
  }
}
