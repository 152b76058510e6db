/** What a step makes of its model's answer, and when that is committed. */
import { randomBytes } from 'node:crypto'
import { pino } from 'pino'
import t from 'tap'
import type { BusEvent } from '../../src/bus/bus.ts'
import type { ModelEvent } from '../../src/chat/event.ts'
import type { Finish } from '../../src/chat/fold.ts'
import { NO_USAGE } from '../../src/chat/message.ts'
import { StaleOwner, type Store } from '../../src/store/store.ts'
import { eventually, gate } from '../waiting.ts'
import {
  asked,
  CALLER,
  calling,
  HELLO,
  NEVER,
  pieces,
  session,
  store,
  toolsThat,
  withTurns,
  world,
} from './engines.ts'

t.test('a refusal takes back the calls that were made before it', async (t) => {
  const { say, replica } = world(t, {}, [
    { type: 'part', index: 0, part: { type: 'text', text: 'Let me see.' } },
    { type: 'part', index: 1, part: { type: 'tool_call', call_id: 'call_1', name: 'a.b', arguments: {} } },
    { type: 'finish', reason: 'refusal' },
  ])
  const one = replica()
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked())
  say()
  const over = await one.wait(CALLER, turn.id, 30, NEVER)
  t.match(over, { state: 'completed', finish_reason: 'refusal', steps: [{ finish_reason: 'refusal' }] })
  const [, answer] = await store.messages.after(id, 0)
  t.match(answer?.parts, [{ type: 'text', text: 'Let me see.' }])
  t.equal(answer?.parts.length, 1)
})

t.test('a model that is not done is asked again within the step limit', async (t) => {
  const goesOn: ModelEvent = { type: 'finish', reason: 'stop', goes_on: true }
  const said: ModelEvent = { type: 'part', index: 0, part: { type: 'text', text: 'First, ' } }
  const { say, replica } = world(t, {}, [said, goesOn])
  const one = replica()
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 2 }))
  say()
  const over = await one.wait(CALLER, turn.id, 30, NEVER)
  t.match(over, { state: 'completed', finish_reason: 'max_steps' })
  t.strictSame(
    over.steps.map((step) => step.finish_reason),
    ['stop', 'stop'],
  )
  const roles = (await store.messages.after(id, 0)).map(({ role }) => role)
  t.strictSame(roles, ['user', 'assistant', 'assistant'])
})

t.test('a silent answer is asked for once more, unless it is an empty one after tool calls', async (t) => {
  const silent = (how: NonNullable<Finish['silent']>): ModelEvent => ({
    type: 'finish',
    reason: 'stop',
    silent: how,
  })
  const calls = calling('call_1')
  const paid: ModelEvent = { type: 'usage', usage: { ...NO_USAGE, input_tokens: 5 } }
  const called = { index: 0, finish_reason: 'tool_calls' }
  const again = (index: number) => [
    { index, discarded: true },
    { index, attempt: 2, finish_reason: 'stop' },
  ]
  for (const [answer, last, steps, input_tokens] of [
    [[paid, silent('empty')], 'empty', again(0), 10],
    [[paid, silent('thoughts')], 'empty', again(0), 10],
    [calls, 'empty', [called, { index: 1, attempt: 1, finish_reason: 'stop' }], 0],
    [calls, 'thoughts', [called, ...again(1)], 0],
    [calls, 'lost', [called, ...again(1)], 0],
    [calls, 'call', [called, ...again(1)], 0],
  ] as const) {
    const said = [...answer]
    const { bus, say, replica } = world(t, {}, said)
    const one = replica(
      toolsThat(() => {
        said.splice(0, said.length, silent(last))
        return null
      }),
    )
    const { turn } = await one.start(CALLER, (await session()).id, asked())
    say()
    const over = await one.wait(CALLER, turn.id, 30, NEVER)
    t.match(over, { state: 'completed', restarts: 0, steps, usage: { input_tokens } })
    const told: unknown[] = []
    for await (const item of bus.read(turn.session_id, { turn: turn.id, after: 'start', signal: NEVER }))
      if ('events' in item) told.push(...item.events.map(({ data }) => JSON.parse(data).usage))
    t.match(told.at(-1), { input_tokens }, 'the turn’s end tells what all its attempts used')
  }
})

t.test('a call of a name that is too long for an index is told as unknown, as any other', async (t) => {
  const name = `write_file ${randomBytes(6000).toString('base64')}`
  const { say, replica } = world(t, {}, [
    { type: 'part', index: 0, part: { type: 'tool_call', call_id: 'call_1', name, arguments: {} } },
    { type: 'finish', reason: 'tool_calls' },
  ])
  const one = replica(toolsThat(() => null))
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked({ max_steps: 1 }))
  say()
  const over = await one.wait(CALLER, turn.id, 30, NEVER)
  t.match(over, { state: 'completed', finish_reason: 'max_steps', error: null })
  const roles = (await store.messages.after(id, 0)).map(({ role }) => role)
  t.strictSame(roles, ['user', 'assistant', 'tool'])
  const { data } = await store.executions.list(CALLER, { turn_id: turn.id }, { limit: 2 })
  t.strictSame(
    data.map(({ tool }) => tool),
    [name.slice(0, 2048)],
  )
})

t.test('a turn does not wait for a tools revision that the store does not have', async (t) => {
  const { say, replica } = world(t)
  const { tools } = pieces(Promise.resolve(), HELLO)
  const one = replica({ tools: { ...tools, latestRevision: () => 7 } })
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked())
  say()
  t.match(await one.wait(CALLER, turn.id, 5, NEVER), { state: 'completed' })
})

t.test('a step is committed after its deltas are in the stream', async (t) => {
  const { bus, say, replica } = world(t)
  const { opened: isThere, open: arrive } = gate()
  const order: string[] = []
  const append = async (id: string, events: BusEvent[]) => {
    if (events.some(({ type }) => type === 'content.delta')) {
      await isThere
      order.push('streamed')
    }
    return bus.append(id, events)
  }
  const commit: Store['turns']['commit'] = (...given) => {
    order.push('committed')
    return store.turns.commit(...given)
  }
  const one = replica({ bus: { ...bus, append }, store: withTurns({ commit }) })
  const { id } = await session()
  const { turn } = await one.start(CALLER, id, asked())
  say()
  await new Promise((resolve) => setTimeout(resolve, 50))
  arrive()
  t.match(await one.wait(CALLER, turn.id, 30, NEVER), { state: 'completed' })
  t.strictSame(order, ['streamed', 'committed'])
})

t.test('a step whose commit fails sends no event of that commit', async (t) => {
  const { say, replica, begin } = world(t)
  const commit: Store['turns']['commit'] = async () => {
    throw new StaleOwner()
  }
  const lines: string[] = []
  const log = pino({ level: 'error' }, { write: (line: string) => void lines.push(line) })
  const former = replica({ log, store: withTurns({ commit }) })
  const { types } = await begin(former)
  say()
  await eventually(() => types.includes('usage'))
  await former.drain(1_000)
  t.strictSame(lines, [], 'a turn that another replica owns by now is no error')
  t.strictSame(types, ['turn.created', 'turn.started', 'step.started', 'content.delta', 'usage'])
})
