/** Restarts that a caller asks for, at the turn's owner or at another replica: each is made, or not claimed. */
import t, { type Test } from 'tap'
import type { Bus } from '../../src/bus/bus.ts'
import { isTerminal, type ModelEvent } from '../../src/chat/event.ts'
import { BatonError } from '../../src/errors.ts'
import type { Store } from '../../src/store/store.ts'
import { endTurn, id as newId, runningTurn } from '../contracts/store-rows.ts'
import { eventually, gate } from '../waiting.ts'
import {
  asked,
  CALLER,
  calling,
  database,
  HELLO,
  heldCommit,
  NEVER,
  session,
  settled,
  store,
  toolsThat,
  withTurns,
  world,
} from './engines.ts'

t.test('any replica can restart a turn during its model call, and not during its tool calls', async (t) => {
  const { say, replica, begin } = world(t, {}, calling('call_1'))
  const { opened: worked, open: work } = gate()
  const tools = toolsThat(() => worked)
  const [owner, other] = [replica(tools), replica(tools)]
  const { session: chat, turn, types } = await begin(owner, { max_steps: 1 })
  await eventually(() => types.includes('step.started'))
  const move = { tools_revision: 1, removed: [], isMoved: true }
  const next = { effective: { turn_id: turn.id, from: 'next_step' }, restarted_turn_id: null }
  t.strictSame(await other.takeEffect(chat, move, 'next'), next)
  await other.restart(CALLER, turn.id)
  await eventually(() => types.includes('turn.restarted'))
  t.match(await store.turns.get(CALLER, turn.id), { attempt: 2, restarts: 1 }, 'the next owner counts on')
  say()
  await eventually(() => types.includes('tool_execution.started'))
  t.strictSame(await other.takeEffect(chat, move, 'now'), next)
  await t.rejects(other.restart(CALLER, turn.id), { code: 'not_restartable' })
  work()
})

/**
 * Two replicas, of which the first runs a turn whose model speaks. `other` changes the second replica's bus, `owner`
 * the first replica's store.
 */
async function apart(
  t: Test,
  other: (bus: Bus) => Partial<Bus> = () => ({}),
  owner: Partial<Store['turns']> = {},
) {
  const { bus, say, replica, begin } = world(t, {}, HELLO)
  const one = replica({ store: withTurns(owner) })
  const two = replica({ bus: { ...bus, ...other(bus) } })
  const { session: opened, turn, types } = await begin(one)
  await eventually(() => types.includes('step.started'))
  const move = { tools_revision: 1, removed: [], isMoved: true }
  const change = () => two.takeEffect(opened, move, 'now')
  return { turn, types, say, change, restart: () => two.restart(CALLER, turn.id) }
}

t.test('a replica that is asked for a restart answers what the turn’s owner told it', async (t) => {
  const { turn, types, say, change, restart } = await apart(t)
  const restarted = { effective: { turn_id: turn.id, from: 'restart' }, restarted_turn_id: turn.id }
  t.strictSame(await change(), restarted)
  await eventually(() => types.includes('turn.restarted'))
  await eventually(() => types.at(-1) === 'step.started')
  t.match(await restart(), { id: turn.id, state: 'running' })
  await eventually(() => types.filter((type) => type === 'turn.restarted').length === 2)
  say()
  await eventually(() => types.includes('turn.completed'))
  t.equal(types.filter((type) => type === 'step.discarded').length, 2, 'each attempt is taken back')
})

t.test('what an attempt streamed is taken back before its end is committed', async (t) => {
  const { opened: committed, open: commit } = gate()
  const { types, say, restart } = await apart(t, undefined, {
    async commit(...args) {
      await committed
      return store.turns.commit(...args)
    },
  })
  await restart()
  await eventually(() => types.includes('step.discarded'))
  commit()
  say()
  await eventually(() => types.includes('turn.completed'))
})

t.test(
  'what an attempt streamed is taken back once, though its owner is lost before that is committed',
  async (t) => {
    const { say, replica, begin } = world(t)
    const { goOn, store } = heldCommit()
    const one = replica({ store })
    t.teardown(goOn)
    const { session: chat, turn, types } = await begin(one)
    await eventually(() => types.includes('step.started'))
    await one.restart(CALLER, turn.id)
    await eventually(() => types.includes('step.discarded'))
    say()
    await database.query('update session set lease_until = now() where id = $1', [chat.id])
    replica()
    await eventually(() => types.includes('turn.completed'))
    const steps = types.filter((type) => type.startsWith('step.'))
    t.strictSame(steps, ['step.started', 'step.discarded', 'step.started', 'step.completed'])
  },
)

t.test('no restart is claimed while the turn’s step is being committed', async (t) => {
  const { opened: committed, open: commit } = gate()
  const { opened: reached, open: reach } = gate()
  const { turn, types, say, change, restart } = await apart(t, undefined, {
    async commit(...args) {
      reach()
      await committed
      return store.turns.commit(...args)
    },
  })
  say()
  await reached
  t.match(await change(), { effective: { turn_id: turn.id, from: 'next_step' }, restarted_turn_id: null })
  await t.rejects(restart(), { code: 'not_restartable' })
  commit()
  await eventually(() => types.includes('turn.completed'))
})

t.test('no restart is claimed while the turn’s failure is being committed', async (t) => {
  const { opened: committed, open: commit } = gate()
  const { opened: reached, open: reach } = gate()
  const broken = {
    get type(): never {
      throw new BatonError('upstream_disconnected', 'It broke.')
    },
  } as unknown as ModelEvent
  const { say, replica, begin } = world(t, {}, [broken])
  const one = replica({
    store: withTurns({
      async commit(...args) {
        reach()
        await committed
        return store.turns.commit(...args)
      },
    }),
  })
  const { turn, types } = await begin(one)
  say()
  await reached
  await t.rejects(one.restart(CALLER, turn.id), { code: 'not_restartable' })
  commit()
  await eventually(() => types.includes('turn.failed'))
})

t.test('a restart or a cancel that arrives as the model’s last bytes are read is made', async (t) => {
  for (const [op, made] of [
    ['restart', 'turn.restarted'],
    ['cancel', 'turn.cancelled'],
  ] as const) {
    let command: string | null = null
    const last = {
      reason: 'stop',
      get type() {
        if (command) void bus.publish('control', command)
        command = null
        return 'finish'
      },
    } as ModelEvent
    const { bus, say, replica, begin } = world(t, {}, [last])
    const { turn, types } = await begin(replica())
    command = JSON.stringify({ op, session_id: turn.session_id, turn_id: turn.id })
    say()
    await eventually(() => isTerminal(types.at(-1) ?? ''))
    t.ok(types.includes(made), op)
  }
})

t.test('no restart is claimed if the turn’s owner cannot be told', async (t) => {
  const away = () => Promise.reject(new BatonError('unavailable', 'away'))
  const { turn, types, say, change, restart } = await apart(t, () => ({
    publish: async () => {},
    ready: away,
  }))
  t.match(await change(), { effective: { turn_id: turn.id, from: 'next_step' }, restarted_turn_id: null })
  await t.rejects(restart(), { code: 'unavailable' })
  say()
  await eventually(() => types.includes('turn.completed'))
  t.notOk(types.includes('turn.restarted'))
})

t.test('the owner’s own answer to a restart holds although the bus is away', async (t) => {
  const { bus, say, replica, begin } = world(t, {}, HELLO)
  const owner = replica({
    bus: { ...bus, ready: () => Promise.reject(new BatonError('unavailable', 'away')) },
  })
  const { turn, types } = await begin(owner)
  await eventually(() => types.includes('step.started'))
  t.match(await owner.restart(CALLER, turn.id), { state: 'running' })
  say()
  await eventually(() => types.includes('turn.completed'))
  t.ok(types.includes('turn.restarted'))
})

t.test('no restart is claimed if no owner answers and the turn’s row rules it out', async (t) => {
  for (const [became, code] of [
    [{ restarts: 8 }, 'restart_limit'],
    [{ state: 'awaiting_input' }, 'not_restartable'],
  ] as const) {
    const { bus, say, replica } = world(t, {}, HELLO)
    const owner = replica()
    let isAsked = false
    const publish = async () => {
      isAsked = true
    }
    const get: Store['turns']['get'] = async (...given) => {
      const seen = await store.turns.get(...given)
      return seen && (isAsked ? { ...seen, ...became } : seen)
    }
    const other = replica({ bus: { ...bus, publish }, store: withTurns({ get }) })
    const { id } = await session()
    const { turn } = await owner.start(CALLER, id, asked())
    await t.rejects(other.restart(CALLER, turn.id), { code })
    say()
    await owner.wait(CALLER, turn.id, 30, NEVER)
  }
})

t.test('no restart is claimed if no owner answers and the ledger has an open call of the turn', async (t) => {
  const { replica } = world(t)
  const other = replica()
  const isOpen = async (state: 'started' | 'awaiting_approval') => {
    const { turn, fence } = await runningTurn(store, CALLER)
    const call = { turn_id: turn.id, step: 0, call_id: 'call_1', tool: 'a.b', connector: null }
    const rest = { tools_revision: 0, arguments: {}, repeatable: false, lapses_in: 60 }
    const row = { id: newId('exec'), ...call, ...rest, state }
    await store.turns.commit(fence, { turn_id: turn.id, executions: [row] })
    await t.rejects(other.restart(CALLER, turn.id), { code: 'not_restartable' }, state)
    const said = { type: 'tool_call', call_id: 'call_1', name: 'a.b', arguments: {} } as const
    await store.executions.settle(fence, settled(said, row.id, 'ok'))
    t.match(
      await other.restart(CALLER, turn.id),
      { state: 'running' },
      'without an open call the restart is accepted: the owner may only be slow',
    )
    await endTurn(store, fence, turn.id)
  }
  await Promise.all([isOpen('started'), isOpen('awaiting_approval')])
})

t.test(
  'a change takes effect with the next turn once this turn is over although its last event is not sent yet',
  async (t) => {
    const { bus, say, replica, begin } = world(t, {}, HELLO)
    const { opened: heard, open: hear } = gate()
    const append: Bus['append'] = async (id, events) => {
      if (events.some(({ type }) => type === 'turn.completed')) await heard
      return bus.append(id, events)
    }
    const owner = replica({ bus: { ...bus, append } })
    const { session: chat, turn } = await begin(owner)
    say()
    await eventually(async () => (await store.turns.get(CALLER, turn.id))?.state === 'completed')
    t.strictSame(await owner.takeEffect(chat, { tools_revision: 1, removed: [], isMoved: true }, 'now'), {
      effective: { turn_id: null, from: 'next_turn' },
      restarted_turn_id: null,
    })
    hear()
  },
)
