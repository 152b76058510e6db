/** What becomes of a call without a result, row by row of the ledger: where its turn goes on, and where it is given up. */
import t from 'tap'
import type { ToolCallPart, ToolResultPart } from '../../src/chat/message.ts'
import type { Connector, Execution } from '../../src/store/store.ts'
import type { DeclaredTool } from '../../src/tools/execute.ts'
import { fateOf, MOST_CALLS } from '../../src/turns/fate.ts'
import type { Job } from '../../src/turns/job.ts'

const ASKED_AT = '2026-11-22T00:00:00.000Z'
const goesOn = { asked_at: ASKED_AT, isCancelled: false }
const call: ToolCallPart = { type: 'tool_call', call_id: 'call_1', name: 'files.read', arguments: {} }
const connector = { name: 'files', created_at: '2026-11-21T00:00:00.000Z' } as Connector
const job = (rest: Partial<Job> = {}): Job => {
  return { call, exec_id: 'exec_1', declared: {} as DeclaredTool, connector, waits: false, ...rest }
}
const row = (state: Execution['state'], rest: Partial<Execution> = {}) =>
  ({ state, connector: 'files', repeatable: false, result: null, approval: null, ...rest }) as Execution
const decided = (decision: 'approve' | 'deny' | 'expired', reason: string | null = null) =>
  row('awaiting_approval', { approval: { decision, reason, sealed_arguments: null } })

const bare = job({ connector: null })
const gone = job({ connector: null, declared: undefined })
const another = job({ connector: { ...connector, name: 'other' } })
const younger = job({ connector: { ...connector, created_at: '2026-11-23T00:00:00.000Z' } })
const broken = job({ call: { ...call, arguments_text: '{' } })
const builtin = { connector: null, repeatable: true }

const rows: [what: string, job: Job, row: Execution | undefined, goesOn: string, givenUp: string][] = [
  ['no row', job(), undefined, 'outcome_unknown', 'outcome_unknown'],
  ['settled', job(), row('settled', { result: {} as ToolResultPart }), 'settled', 'settled'],
  ['settled, no result', job(), row('settled'), 'outcome_unknown', 'outcome_unknown'],
  ['may not be repeated', job(), row('started'), 'outcome_unknown', 'outcome_unknown'],
  ['may be repeated', job(), row('started', { repeatable: true }), 'runs', 'outcome_unknown'],
  ['a built-in', bare, row('started', builtin), 'runs', 'outcome_unknown'],
  [
    'a built-in that may not',
    bare,
    row('started', { connector: null }),
    'outcome_unknown',
    'outcome_unknown',
  ],
  ['a built-in that is gone', gone, row('started', builtin), 'outcome_unknown', 'outcome_unknown'],
  ['its tool is gone', gone, row('started', { repeatable: true }), 'outcome_unknown', 'outcome_unknown'],
  ['its tool is gone, may not be repeated', gone, row('started'), 'outcome_unknown', 'outcome_unknown'],
  ['another server', another, row('started', { repeatable: true }), 'outcome_unknown', 'outcome_unknown'],
  ['a younger server', younger, row('started', { repeatable: true }), 'outcome_unknown', 'outcome_unknown'],
  ['no JSON', broken, row('started'), 'runs', 'error'],
  ['no such tool', gone, row('started', { connector: null }), 'runs', 'error'],
  ['nobody has decided', job(), row('awaiting_approval'), 'waits', 'cancelled'],
  ['nobody has decided, another server', another, row('awaiting_approval'), 'cancelled', 'cancelled'],
  ['approved', job(), decided('approve'), 'runs', 'cancelled'],
  ['approved, another server', another, decided('approve'), 'cancelled', 'cancelled'],
  ['denied', job(), decided('deny', 'too much'), 'denied', 'cancelled'],
  ['lapsed', job(), decided('expired'), 'denied', 'cancelled'],
  ['expired with its tool', job(), decided('expired', 'Its tool went.'), 'cancelled', 'cancelled'],
]

/** What becomes of it in a word: the outcome where it is not run. */
const wordOf = (...given: Parameters<typeof fateOf>) => {
  const fate = fateOf(...given)
  return fate.kind === 'unrun' ? fate.outcome : fate.kind
}

for (const [what, job, row, on, up] of rows) {
  t.test(`a call: ${what}`, async (t) => {
    t.equal(wordOf(job, row, 0, goesOn), on, 'the turn goes on')
    t.equal(wordOf(job, row, 0, null), up, 'the turn is given up')
  })
}

t.test('what the ledger has of a settled call is what is told of it', async (t) => {
  const result = { outcome: 'ok' } as ToolResultPart
  for (const turn of [goesOn, null]) {
    const fate = fateOf(job(), row('settled', { result, duration_ms: 7 }), 0, turn)
    t.strictSame(fate, { kind: 'settled', result, duration_ms: 7 })
    const untimed = fateOf(job(), row('settled', { result, duration_ms: null }), 0, turn)
    t.strictSame(untimed, { kind: 'settled', result, duration_ms: 0 })
  }
})

t.test('nothing is repeated in a turn that is being cancelled', async (t) => {
  const cancelled = { ...goesOn, isCancelled: true }
  t.equal(wordOf(job(), row('started', { repeatable: true }), 0, cancelled), 'outcome_unknown')
  t.equal(wordOf(broken, row('started'), 0, cancelled), 'runs', 'what could never run is told as such')
})

t.test('a call beyond those of one step was not run, whoever tells it', async (t) => {
  for (const turn of [goesOn, null]) {
    t.match(fateOf(job(), row('started'), MOST_CALLS, turn), { outcome: 'error', text: /beyond the 128/ })
    t.equal(wordOf(job(), row('settled', { result: {} as ToolResultPart }), MOST_CALLS, turn), 'settled')
  }
})

t.test('a person’s reason is told to the model', async (t) => {
  t.match(fateOf(job(), decided('deny', 'too much'), 0, goesOn), { text: 'The call was denied: too much' })
  t.match(fateOf(job(), decided('deny'), 0, goesOn), { text: 'The call was denied.' })
})
