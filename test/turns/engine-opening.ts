/** What a turn is accepted on: the history and the session at that moment, even if they change before it runs. */
import t from 'tap'
import type { ToolCallPart } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import type { StartTurn } from '../../src/ports.ts'
import type { Commit, Store } from '../../src/store/store.ts'
import { runningTurn } from '../contracts/store-rows.ts'
import { asked, CALLER, NEVER, settled, store, withTurns, world } from './engines.ts'

t.test('a turn’s edits are checked against the history on which the turn is accepted', async (t) => {
  const { session: opened, turn, fence } = await runningTurn(store, CALLER)
  const call: ToolCallPart = { type: 'tool_call', call_id: 'call_1', name: 'a', arguments: {} }
  const { result } = settled(call, 'exec_1', 'ok')
  const said = {
    turn_id: turn.id,
    messages: [{ id: 'msg_call', turn_id: turn.id, role: 'assistant', parts: [call] }],
  }
  const told = {
    turn_id: turn.id,
    messages: [{ id: 'msg_result', turn_id: turn.id, role: 'tool', parts: [result] }],
  }
  await store.turns.commit(fence, said as Commit)
  // The result is committed as the turn is asked for. Before, `-1` was the call's message, which may be deleted while
  // it has no result.
  const open: Store['turns']['open'] = async (...given) => {
    await store.turns.commit(fence, told as Commit)
    return store.turns.open(...given)
  }
  const one = world(t).replica({ store: withTurns({ open }) })
  const edited = asked({ on_busy: 'enqueue', context: [{ op: 'delete_at', index: -1 }] })
  await t.rejects(one.start(CALLER, opened.id, edited), { code: 'context_splits_tool_exchange' })
  t.match(await store.turns.list(CALLER, opened.id, { limit: 10 }), { data: { length: 1 } })
})

t.test('a queued turn that names only a model or a provider takes the other from the session', async (t) => {
  const { say, replica, begin } = world(t)
  const one = replica()
  const { session: opened } = await begin(one)
  const queued = async (named: Partial<StartTurn>) =>
    (await one.start(CALLER, opened.id, asked({ on_busy: 'enqueue', ...named }))).turn.id
  const turns = [await queued({ model: 'acme-2' }), await queued({ provider: 'acme' })]
  await t.rejects(queued({ provider: 'other' }), { code: 'invalid_request', param: 'model' })
  await store.sessions.update(CALLER, opened.id, { provider: 'other', model: 'other-1' })
  say()
  const over = turns.map((id) => one.wait(CALLER, id, 30, NEVER))
  t.match(await Promise.all(over), [
    { state: 'completed', steps: [{ provider: 'acme', model: 'acme-2' }] },
    { state: 'completed', steps: [{ provider: 'acme', model: 'acme-1' }] },
  ])
})

t.test('an interrupting turn that is stored is accepted, though the store is away right after', async (t) => {
  // The owner's heartbeat, each third of its lease, finds the cancel in the store.
  const { say, replica, begin } = world(t, { leaseSeconds: 1 })
  const requestCancel = async () => {
    throw new BatonError('unavailable', 'away')
  }
  const one = replica({ store: withTurns({ requestCancel }) })
  const { session: opened, turn: former } = await begin(one)
  const { turn, outcome } = await one.start(CALLER, opened.id, asked({ on_busy: 'interrupt' }))
  t.equal(outcome, 'queued')
  const over = (id: string) => one.wait(CALLER, id, 30, NEVER)
  t.match(await over(former.id), { state: 'cancelled' })
  say()
  t.match(await over(turn.id), { state: 'completed' })
})
