/**
 * Validates a call's arguments against the server's own schema, in a thread with a time budget. A schema
 * that is unusable or too slow is not held against the call: the server validates too.
 */
import { Worker } from 'node:worker_threads'
import { canonicalJson, sha256 } from './json.ts'
import type { Job, Verdict } from './validate-worker.ts'

export interface Validator {
  /** Problems in words; none when the arguments fit, or when the schema could not be used in time. */
  problems(schema: unknown, value: unknown): Promise<string[]>
  close(): Promise<void>
}

/** Generous on a loaded machine; what is slower is slow on purpose. */
const BUDGET_MS = 1_000
/** The first job also waits for the thread to load. */
const START_BUDGET_MS = 10_000

interface Waiting {
  job: Job
  /** Kept for a thread that has not seen it */
  schema: unknown
  settle(problems: string[]): void
}

export function createValidator(budgetMs = BUDGET_MS): Validator {
  let worker: Worker | null = null
  let current: Waiting | null = null
  let timer: NodeJS.Timeout | undefined
  let count = 0
  const queue: Waiting[] = []
  /** Compiled by the living thread */
  const known = new Set<string>()
  /** Schemas that cost a thread its life, or that it cannot use */
  const refused = new Set<string>()
  const keys = new WeakMap<object, string>()

  function start(): Worker {
    const fresh = new Worker(new URL('./validate-worker.js', import.meta.url))
    fresh.unref()
    fresh.on('message', (verdict: Verdict) => {
      if (current?.job.id !== verdict.id) return
      if ('unusable' in verdict) refused.add(current.job.key)
      else known.add(current.job.key)
      done('problems' in verdict ? verdict.problems : [])
    })
    fresh.on('error', () => abandon())
    known.clear()
    return fresh
  }

  function done(problems: string[]): void {
    clearTimeout(timer)
    const finished = current
    current = null
    finished?.settle(problems)
    next()
  }

  /** The schema took too long, or killed the thread: it is not used again. */
  function abandon(): void {
    if (current) refused.add(current.job.key)
    void worker?.terminate()
    worker = null
    done([])
  }

  function next(): void {
    if (current) return
    current = queue.shift() ?? null
    if (!current) return
    const isNew = worker === null
    worker ??= start()
    const { job, schema } = current
    timer = setTimeout(abandon, isNew ? START_BUDGET_MS : budgetMs)
    worker.postMessage(known.has(job.key) ? job : { ...job, schema })
  }

  function keyOf(schema: unknown): string {
    if (typeof schema !== 'object' || schema === null) return ''
    const found = keys.get(schema)
    if (found !== undefined) return found
    const key = sha256(canonicalJson(schema))
    keys.set(schema, key)
    return key
  }

  return {
    problems(schema, value) {
      const key = keyOf(schema)
      if (key === '' || refused.has(key)) return Promise.resolve([])
      return new Promise((settle) => {
        queue.push({ job: { id: ++count, key, value }, schema, settle })
        next()
      })
    },
    async close() {
      clearTimeout(timer)
      await worker?.terminate()
      worker = null
    },
  }
}
