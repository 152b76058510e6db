/** What every store does with tool calls. */
import type { Test } from 'tap'
import type { ToolResultPart } from '../../src/chat/message.ts'
import {
  type NewExecution,
  type Settlement,
  type ShownExecution,
  StaleOwner,
  type Store,
} from '../../src/store/store.ts'
import {
  ADMIN,
  allPages,
  endTurn,
  execution,
  id,
  LEASE,
  message,
  owner,
  rejection,
  runningTurn,
  STRANGER,
} from './store-rows.ts'

export const resultOf = (call_id: string): ToolResultPart => ({
  type: 'tool_result',
  call_id,
  name: 'files.read',
  content: [{ type: 'text', text: 'cut \0' }],
  is_error: false,
  outcome: 'ok',
})
export const settlement = (
  { id: exec, call_id }: NewExecution,
  rest: Partial<Settlement> = {},
): Settlement => ({
  id: exec,
  outcome: 'ok',
  is_error: false,
  error: null,
  duration_ms: 12.5,
  bytes: 9,
  output: 'full \0 \ud800 output',
  structured: false,
  result: resultOf(call_id),
  ...rest,
})
const approve = { decision: 'approve' as const, reason: null, sealed_arguments: null, by: 'ann' }

export async function ledgerContract(t: Test, store: Store): Promise<void> {
  await t.test('a call is in the ledger before it runs and settled after it', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const one = execution(turn.id, { repeatable: true })
    await store.turns.commit(fence, { turn_id: turn.id, executions: [one] })
    const started = await store.executions.get(scope, one.id)
    const { lapses_in, ...given } = one
    t.match(started, {
      ...given,
      session_id: session.id,
      outcome: null,
      ended_at: null,
      started_at: /Z$/,
      approval: null,
    })
    t.equal(JSON.stringify(started?.arguments), JSON.stringify(one.arguments))
    t.equal(await store.executions.output(scope, one.id), null, 'there is no output yet')
    t.equal(await store.executions.decide(scope, turn.id, one.call_id, approve), 'not_awaiting')
    await store.executions.settle(fence, settlement(one, { error: 'it said \0' }))
    await store.executions.begin(fence, one.id)
    const settled = await store.executions.get(scope, one.id)
    t.match(settled, {
      state: 'settled',
      outcome: 'ok',
      is_error: false,
      error: 'it said \ufffd',
      duration_ms: 12.5,
      bytes: 9,
      ended_at: /Z$/,
    })
    const [kept] = await store.executions.ofTurn(turn.id)
    t.strictSame(kept?.result, resultOf(one.call_id), 'the result is kept until the conversation has it')
    t.strictSame(await store.executions.output(scope, one.id), {
      output: 'full \0 \ud800 output',
      structured: false,
    })
    t.strictSame(await store.executions.ofTurn(turn.id), [{ ...settled, result: resultOf(one.call_id) }])
    const said = message('', { role: 'tool', turn_id: turn.id, parts: [resultOf(one.call_id)] })
    await store.turns.commit(fence, { turn_id: turn.id, messages: [said] })
    t.equal((await store.executions.ofTurn(turn.id))[0]?.result, null)
    await endTurn(store, fence, turn.id)
  })

  await t.test('settlements may come with a commit, too, and count only under a valid lease', async (t) => {
    const scope = owner()
    const { turn, fence } = await runningTurn(store, scope)
    const [one, two] = [execution(turn.id), execution(turn.id)]
    await store.turns.commit(fence, { turn_id: turn.id, executions: [one, two] })
    const other = await runningTurn(store, scope)
    const namesake = execution(other.turn.id, { call_id: one.call_id, state: 'awaiting_approval' })
    await store.turns.commit(other.fence, { turn_id: other.turn.id, executions: [namesake] })
    await store.executions.begin(fence, namesake.id)
    await store.executions.settle(fence, settlement(namesake))
    t.match(
      await store.executions.get(scope, namesake.id),
      { state: 'awaiting_approval' },
      'a call of another turn’s lease is not settled',
    )
    await store.executions.settle(other.fence, settlement(namesake))
    const said = message('', { role: 'tool', turn_id: turn.id, parts: [resultOf(one.call_id)] })
    await store.turns.commit(fence, {
      turn_id: turn.id,
      settlements: [settlement(one), settlement(two)],
      messages: [said],
    })
    const rows = await store.executions.ofTurn(turn.id)
    t.strictSame(
      rows.map((row) => [row.state, row.result === null]),
      [
        ['settled', true],
        ['settled', false],
      ],
    )
    t.ok(
      (await store.executions.ofTurn(other.turn.id))[0]?.result,
      'another turn’s call with the same id keeps its result',
    )
    await endTurn(store, fence, turn.id)
    t.equal(other.fence.epoch, fence.epoch, 'the other turn’s lease has the same epoch as this one')
    const former = { ...other.fence, epoch: other.fence.epoch - 1 }
    const late = [
      store.executions.settle(fence, settlement(two)),
      store.executions.begin(fence, two.id),
      store.executions.settle(former, settlement(namesake)),
    ]
    for (const thrown of await Promise.all(late.map(rejection))) t.ok(thrown instanceof StaleOwner)
    await endTurn(store, other.fence, other.turn.id)
  })

  await t.test('a waiting call is decided once, and its turn can go on when no call is open', async (t) => {
    const scope = owner()
    const { turn, fence } = await runningTurn(store, scope)
    const waiting = { state: 'awaiting_approval' as const, lapses_in: 60 }
    const before = id('exec')
    const [one, two] = [execution(turn.id, waiting), execution(turn.id, waiting)]
    const plain = execution(turn.id)
    await store.turns.commit(fence, { turn_id: turn.id, executions: [one, two, plain] })
    const settlements = [settlement(plain)]
    await store.turns.commit(fence, { turn_id: turn.id, settlements, state: 'awaiting_input' })
    const other = await runningTurn(store, owner())
    const namesake = execution(other.turn.id, { ...waiting, call_id: one.call_id })
    const foreign = execution(other.turn.id, waiting)
    await store.turns.commit(other.fence, { turn_id: other.turn.id, executions: [namesake, foreign] })
    const asked = await store.executions.get(scope, one.id)
    t.match(asked, { state: 'awaiting_approval', started_at: null })
    t.ok(Math.abs(Date.parse(asked?.expires_at ?? '') - Date.now() - 60_000) < 20_000)
    t.equal(await store.executions.decide(STRANGER, turn.id, one.call_id, approve), null)
    for (const call of ['call_none', foreign.call_id])
      t.equal(await store.executions.decide(scope, turn.id, call, approve), null)
    t.equal(await store.executions.decide(scope, 'turn_none', one.call_id, approve), null)
    const sealed_arguments = new Uint8Array([1, 0, 255])
    const deny = { decision: 'deny' as const, reason: 'no \0', sealed_arguments: null, by: 'bob' }
    const edited = { ...approve, sealed_arguments, arguments: { a: 2, z: '\0' } }
    const both = await Promise.all([
      store.executions.decide(scope, turn.id, one.call_id, edited),
      store.executions.decide(scope, turn.id, one.call_id, edited),
    ])
    t.strictSame(both.sort(), ['decided', 'not_awaiting'])
    const resumable = async () => (await store.turns.resumable(1000)).includes(turn.id)
    t.equal(await store.turns.resumeAwaiting(turn.id, LEASE), null, 'one call is still open')
    t.notOk(await resumable())
    t.equal(await store.executions.decide(ADMIN, turn.id, two.call_id, deny), 'decided')
    t.ok(await resumable(), 'a scan finds the turn, in case the process that decided dies')
    const [approved, denied] = await store.executions.ofTurn(turn.id)
    t.match(approved, {
      approved_by: 'ann',
      state: 'awaiting_approval',
      approval: { decision: 'approve', reason: null },
    })
    t.strictSame(approved?.approval?.sealed_arguments, sealed_arguments)
    t.strictSame(approved?.arguments, edited.arguments, 'the arguments that are shown are the edited ones')
    t.strictSame(denied?.arguments, two.arguments)
    t.strictSame(
      await store.sealed.arguments(before, 2),
      [
        { id: one.id, sealed: sealed_arguments },
        { id: two.id, sealed: null },
      ],
      'a page of sealed arguments has rows without arguments, too',
    )
    t.match(denied, {
      approved_by: null,
      approval: { decision: 'deny', reason: 'no \ufffd', sealed_arguments: null },
    })
    const resumed = await store.turns.resumeAwaiting(turn.id, LEASE)
    if (!resumed) return t.fail('the turn was not resumed')
    t.notOk(await resumable(), 'the turn no longer waits')
    t.equal(await store.turns.resumeAwaiting(turn.id, LEASE), null, 'a resumed turn cannot be resumed again')
    await store.executions.begin(resumed.fence, one.id)
    t.match(await store.executions.get(scope, one.id), { state: 'started', started_at: /Z$/ })
    t.match(
      await store.executions.get(scope, two.id),
      { state: 'awaiting_approval' },
      'no other call has begun',
    )
    await store.executions.putBack(resumed.fence, one.id)
    t.strictSame((await store.executions.ofTurn(turn.id))[0], approved, 'it was not made after all')
    await store.executions.begin(resumed.fence, one.id)
    await store.executions.settle(resumed.fence, settlement(one))
    for (const { id } of [one, plain]) await store.executions.putBack(resumed.fence, id)
    t.match(
      await store.executions.ofTurn(turn.id),
      [{ state: 'settled' }, { state: 'awaiting_approval' }, { state: 'settled' }],
      'calls that were made stay so',
    )
    await t.rejects(store.executions.putBack(fence, one.id), StaleOwner)
    const beside = await store.executions.get(ADMIN, namesake.id)
    t.match(
      beside,
      { state: 'awaiting_approval', approval: null },
      'a call with the same id in another turn is not decided',
    )
    await endTurn(store, resumed.fence, turn.id)
  })

  await t.test('a late approval can only expire, and a cancelled turn resumes without one', async (t) => {
    const scope = owner()
    const { turn, fence } = await runningTurn(store, scope)
    const [late, open] = [
      execution(turn.id, { state: 'awaiting_approval', lapses_in: -1 }),
      execution(turn.id, { state: 'awaiting_approval', lapses_in: 60 }),
    ]
    await store.turns.commit(fence, { turn_id: turn.id, executions: [late, open], state: 'awaiting_input' })
    const lapsed = async () =>
      (await store.turns.expiredApprovals(1000)).filter((one) => one.turn_id === turn.id)
    t.strictSame(await lapsed(), [{ turn_id: turn.id, call_id: late.call_id }])
    t.equal(await store.executions.decide(scope, turn.id, late.call_id, approve), 'not_awaiting')
    const expired = { decision: 'expired' as const, reason: null, sealed_arguments: null, by: 'baton' }
    t.equal(await store.executions.decide(ADMIN, turn.id, late.call_id, expired), 'decided')
    t.strictSame(await lapsed(), [])
    t.equal(await store.turns.resumeAwaiting(turn.id, LEASE), null)
    await store.turns.requestCancel(scope, turn.id)
    t.ok((await store.turns.resumable(1000)).includes(turn.id))
    const resumed = await store.turns.resumeAwaiting(turn.id, LEASE)
    t.match(resumed, { turn: { cancel_requested: true } })
    if (resumed) await endTurn(store, resumed.fence, turn.id)
  })

  await t.test('lists, figures and outputs show what the filter and the caller allow', (t) =>
    readingContract(t, store),
  )

  await t.test('calls that were not made count in no percentile of made calls', async (t) => {
    const scope = owner()
    const { turn, fence } = await runningTurn(store, scope)
    const calls = [execution(turn.id), execution(turn.id), execution(turn.id)]
    await store.turns.commit(fence, { turn_id: turn.id, executions: calls })
    for (const [i, call] of calls.entries()) {
      const rest =
        i === 0 ? { duration_ms: 40 } : { outcome: 'denied' as const, is_error: true, duration_ms: 0 }
      await store.executions.settle(fence, settlement(call, rest))
    }
    const figures = (filter: Parameters<Store['executions']['stats']>[2]) =>
      store.executions.stats(scope, 'tool', filter)
    t.match(await figures({}), [{ count: 3, failures: 0, p50_ms: 40, p95_ms: 40, max_ms: 40 }])
    t.match(await figures({ outcome: 'denied' }), [{ count: 2, p50_ms: 0, p95_ms: 0, max_ms: 0 }])
    await endTurn(store, fence, turn.id)
  })

  await t.test('calls that no tool could take count apart from those of built-in tools', async (t) => {
    const scope = owner()
    const { turn, fence } = await runningTurn(store, scope)
    const builtin = execution(turn.id, { tool: 'look', connector: null, repeatable: true })
    const none = execution(turn.id, { tool: 'made.up', connector: null })
    await store.turns.commit(fence, { turn_id: turn.id, executions: [builtin, none] })
    await store.executions.settle(fence, settlement(builtin))
    await store.executions.settle(fence, settlement(none, { outcome: 'error', is_error: true }))
    t.match(await store.executions.stats(scope, 'connector', {}), [
      { key: 'builtin', count: 1, failures: 0 },
      { key: 'unknown', count: 1, failures: 1 },
    ])
    await endTurn(store, fence, turn.id)
  })
}

async function readingContract(t: Test, store: Store): Promise<void> {
  const scope = owner()
  // The session with fewer calls has the lower id.
  const two = await runningTurn(store, scope)
  const one = await runningTurn(store, scope)
  const rows = [
    execution(one.turn.id),
    execution(one.turn.id, { tool: 'web.get', connector: 'web' }),
    execution(two.turn.id, { tool: 'now', connector: null, repeatable: true }),
    execution(two.turn.id, { state: 'awaiting_approval' }),
  ]
  const [first, second, third, fourth] = rows
  if (!first || !second || !third || !fourth) throw new Error('there are four rows')
  await store.turns.commit(one.fence, { turn_id: one.turn.id, executions: rows.slice(0, 2) })
  await store.turns.commit(two.fence, { turn_id: two.turn.id, executions: rows.slice(2) })
  await store.executions.settle(one.fence, settlement(first, { duration_ms: 10 }))
  await store.executions.settle(
    one.fence,
    settlement(second, { outcome: 'error', is_error: true, duration_ms: 33 }),
  )
  await store.executions.settle(
    two.fence,
    settlement(third, { outcome: 'outcome_unknown', duration_ms: 20, output: '{"a":1}', structured: true }),
  )

  const listed = async (filter: Parameters<Store['executions']['list']>[1], by = scope) =>
    (await store.executions.list(by, filter, { limit: 50 })).data.map((row: ShownExecution) => row.id)
  const all = rows.map((row) => row.id).reverse()
  t.strictSame(await listed({}), all, 'the newest call comes first')
  t.strictSame(await listed({}, STRANGER), [])
  t.strictSame(await listed({ session_id: one.session.id }, ADMIN), [second.id, first.id])
  t.strictSame(await listed({ session_id: one.session.id }, STRANGER), [])
  t.strictSame(await listed({ turn_id: two.turn.id, tool: 'now' }), [third.id])
  t.strictSame(await listed({ outcome: 'error' }), [second.id])
  t.strictSame(await listed({ since: '2020-01-01T00:00:00Z', until: '9999-12-31T23:59:59.999Z' }), all)
  t.strictSame(await listed({ until: '1970-01-01T00:00:00Z' }), [])
  await new Promise((resolve) => setTimeout(resolve, 5))
  await store.executions.begin(two.fence, fourth.id)
  const at = (await store.executions.get(scope, fourth.id))?.started_at ?? ''
  t.strictSame(
    await listed({ since: at, until: at }),
    [fourth.id],
    '`since` and `until` compare with the start that is shown',
  )
  t.strictSame(await listed({ since: at.replace('Z', '4Z') }), [], 'also where they are finer than it')
  const paged = await allPages((page) => store.executions.list(scope, {}, page), 3)
  t.strictSame([paged.rows.map((row) => row.id), paged.pages], [all, 2])
  const cut = await allPages((page) => store.executions.list(scope, {}, { ...page, bytes: 1 }), 100)
  t.strictSame([cut.rows, cut.pages], [paged.rows, all.length], 'large calls come one per page')

  t.strictSame(
    await store.executions.stats(scope, 'tool', {}),
    [
      { key: 'files.read', count: 1, failures: 0, p50_ms: 10, p95_ms: 10, max_ms: 10 },
      { key: 'now', count: 1, failures: 1, p50_ms: 20, p95_ms: 20, max_ms: 20 },
      { key: 'web.get', count: 1, failures: 1, p50_ms: 33, p95_ms: 33, max_ms: 33 },
    ],
    'calls that are not settled do not count',
  )
  const bySession = await store.executions.stats(scope, 'session', { session_id: one.session.id })
  t.match(bySession, [{ key: one.session.id, count: 2, failures: 1, p50_ms: 22, p95_ms: 32, max_ms: 33 }])
  t.strictSame(
    (await store.executions.stats(scope, 'session', {})).map(({ key }) => key),
    [one.session.id, two.session.id],
    'groups with most calls come first',
  )
  const byConnector = await store.executions.stats(scope, 'connector', {})
  t.strictSame(byConnector.map((group) => group.key).sort(), ['builtin', 'files', 'web'])
  t.strictSame(await store.executions.stats(STRANGER, 'tool', {}), [])

  t.equal(await store.executions.get(STRANGER, first.id), null)
  t.equal(await store.executions.output(STRANGER, first.id), null)
  t.strictSame(await store.executions.output(ADMIN, third.id), { output: '{"a":1}', structured: true })

  t.equal(await store.executions.prune(60), 0)
  await endTurn(store, one.fence, one.turn.id)
  await store.turns.commit(two.fence, { turn_id: two.turn.id, state: 'awaiting_input' })
  await store.executions.prune(-60)
  t.strictSame(
    await listed({}),
    all.slice(0, 2),
    'calls that a turn may still need are not pruned, however long it waits',
  )
  const back = await store.turns.resumeAwaiting(two.turn.id, LEASE)
  await endTurn(store, back?.fence ?? two.fence, two.turn.id)
  await store.executions.prune(-60)
  t.strictSame(await listed({}), [all[0]], 'only settled calls are pruned')
  await store.sessions.delete(scope, two.session.id)
  t.strictSame(await listed({}), [], 'a ledger is deleted with its session')
}
