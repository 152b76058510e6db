/** What becomes of a call without a result, by its row in the ledger, if its turn goes on and if it is given up. */
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
  return {
    call,
    exec_id: 'exec_1',
    declared: {} as DeclaredTool,
    connector,
    waits: false,
    repeatable: false,
    said: new Set(),
    ...rest,
  }
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
  ['has no row in the ledger', job(), undefined, 'outcome_unknown', 'outcome_unknown'],
  ['settled', job(), row('settled', { result: {} as ToolResultPart }), 'settled', 'settled'],
  ['is settled without a result', job(), row('settled'), 'outcome_unknown', 'outcome_unknown'],
  ['has begun and may not be repeated', job(), row('started'), 'outcome_unknown', 'outcome_unknown'],
  ['has begun and may be repeated', job(), row('started', { repeatable: true }), 'runs', 'outcome_unknown'],
  ['has begun at a built-in', bare, row('started', builtin), 'runs', 'outcome_unknown'],
  [
    'has begun at a built-in and may not be repeated',
    bare,
    row('started', { connector: null }),
    'outcome_unknown',
    'outcome_unknown',
  ],
  [
    'has begun at a built-in that is gone',
    gone,
    row('started', builtin),
    'outcome_unknown',
    'outcome_unknown',
  ],
  [
    'has begun and may be repeated, but its tool is gone',
    gone,
    row('started', { repeatable: true }),
    'outcome_unknown',
    'outcome_unknown',
  ],
  [
    'has begun and may not be repeated, and its tool is gone',
    gone,
    row('started'),
    'outcome_unknown',
    'outcome_unknown',
  ],
  [
    'has begun, and another server has its tool now',
    another,
    row('started', { repeatable: true }),
    'outcome_unknown',
    'outcome_unknown',
  ],
  [
    'has begun, and a server made later has its tool now',
    younger,
    row('started', { repeatable: true }),
    'outcome_unknown',
    'outcome_unknown',
  ],
  ['has arguments that are not JSON', broken, row('started'), 'runs', 'error'],
  ['names no tool', gone, row('started', { connector: null }), 'runs', 'error'],
  ['waits for a person', job(), row('awaiting_approval'), 'waits', 'cancelled'],
  [
    'waits for a person, and another server has its tool now',
    another,
    row('awaiting_approval'),
    'cancelled',
    'cancelled',
  ],
  ['is approved', job(), decided('approve'), 'runs', 'cancelled'],
  ['is approved, and another server has its tool now', another, decided('approve'), 'cancelled', 'cancelled'],
  ['is approved, but its tool is gone', gone, decided('approve'), 'cancelled', 'cancelled'],
  ['denied', job(), decided('deny', 'too much'), 'denied', 'cancelled'],
  ['is denied, and its tool is gone', gone, decided('deny'), 'denied', 'cancelled'],
  ['was not decided in time', job(), decided('expired'), 'denied', 'cancelled'],
  [
    'has expired because its tool is gone',
    job(),
    decided('expired', 'Its tool went.'),
    'cancelled',
    'cancelled',
  ],
]

/** The kind of a call's fate, or its outcome if it is not run. */
const wordOf = (...given: Parameters<typeof fateOf>) => {
  const fate = fateOf(...given)
  return fate.kind === 'unrun' ? fate.outcome : fate.kind
}

for (const [what, job, row, on, up] of rows) {
  t.test(`what becomes of a call that ${what}`, async (t) => {
    t.equal(wordOf(job, row, 0, goesOn), on, 'its fate if the turn goes on')
    t.equal(wordOf(job, row, 0, null), up, 'its fate if the turn is given up')
  })
}

t.test('a settled call keeps the result and the duration that the ledger has', async (t) => {
  const result = { outcome: 'ok' } as ToolResultPart
  for (const turn of [goesOn, null]) {
    const fate = fateOf(job(), row('settled', { result, duration_ms: 7 }), 0, turn)
    t.strictSame(fate, { kind: 'settled', result, duration_ms: 7 })
    const untimed = fateOf(job(), row('settled', { result, duration_ms: null }), 0, turn)
    t.strictSame(untimed, { kind: 'settled', result, duration_ms: 0 })
  }
})

t.test('no call begins in a turn that is being cancelled', async (t) => {
  const cancelled = { ...goesOn, isCancelled: true }
  t.match(fateOf(job(), decided('approve'), 0, cancelled), { outcome: 'cancelled', text: /was not run/ })
  t.equal(wordOf(job(), row('started', { repeatable: true }), 0, cancelled), 'outcome_unknown')
  t.equal(
    wordOf(broken, row('started'), 0, cancelled),
    'runs',
    'a call with broken arguments is still told that it could not run',
  )
})

t.test('a call beyond the most of one step gets an error unless it is settled already', async (t) => {
  for (const turn of [goesOn, null]) {
    t.match(fateOf(job(), row('started'), MOST_CALLS, turn), { outcome: 'error', text: /beyond the 128/ })
    t.equal(wordOf(job(), row('settled', { result: {} as ToolResultPart }), MOST_CALLS, turn), 'settled')
  }
})

t.test('the model is told the reason that a person gave for a denial', async (t) => {
  t.match(fateOf(job(), decided('deny', 'too much'), 0, goesOn), {
    text: 'The user denied this call; it was not run: too much',
  })
  t.match(fateOf(job(), decided('deny'), 0, goesOn), { text: 'The user denied this call; it was not run.' })
})
