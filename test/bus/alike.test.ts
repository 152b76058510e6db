/** The rules of a session's log are written twice, in memory-log.ts and as scripts in Redis: both must answer alike. */
import { deepStrictEqual } from 'node:assert'
import fc from 'fast-check'
import t from 'tap'
import type { Bus, BusEvent } from '../../src/bus/bus.ts'
import { createMemoryBus } from '../../src/bus/memory.ts'
import { isTerminal } from '../../src/chat/event.ts'
import { event, eventsOf } from '../contracts/bus-bed.ts'
import { ON_REDIS } from '../given-servers.ts'
import { redisBeds } from './redis-bed.ts'

const TURNS = ['turn_a', 'turn_b', 'turn_c']
const TYPES = ['turn.created', 'step.started', 'content.delta', 'content.delta', 'message', 'turn.completed']
const turn = fc.constantFrom(...TURNS)
/** Picks one of the cursors that were met before. */
const place = fc.nat(1000)
const said = fc.record(
  {
    type: fc.constantFrom(...TYPES),
    turn,
    once: fc.constantFrom('k', 'l', 'turn_a:m'),
    epoch: fc.integer({ min: 1, max: 3 }),
    alone: fc.constant('alone'),
  },
  { requiredKeys: ['type', 'turn'] },
)
const action = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({ do: fc.constant('append' as const), events: fc.array(said, { maxLength: 4 }) }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('read' as const),
      turn: fc.option(turn, { nil: undefined }),
      after: fc.option(place, { nil: undefined }),
      begun: fc.boolean(),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('pastEnd' as const), turn, place, hasEnded: fc.boolean() }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('drop' as const) }) },
)
type Action = typeof action extends fc.Arbitrary<infer A> ? A : never

/** All answers of a bus; a cursor stands as the number of its first appearance. */
async function answersOf(bus: Bus, session: string, actions: readonly Action[]): Promise<unknown[]> {
  const cursors: string[] = []
  const name = (cursor: string) => {
    if (!cursors.includes(cursor)) cursors.push(cursor)
    return cursors.indexOf(cursor)
  }
  const at = (n: number) => cursors[n % cursors.length]
  const ended = new Set<string>()
  const answers: unknown[] = []
  for (const [i, one] of actions.entries()) {
    if (one.do === 'append') {
      // A turn that is over says nothing more, except in the append that ends it.
      const events = one.events.filter(({ turn }) => !ended.has(turn))
      const said = events.map(({ type, turn, alone, epoch, ...rest }): BusEvent => {
        // A process that does not own the turn has no lease, and neither begins the turn nor ends it.
        const isOthers = alone !== undefined && type === 'content.delta'
        const speaker = isOthers ? { alone } : epoch === undefined ? {} : { epoch }
        return { ...event(type, i, turn), ...rest, ...speaker }
      })
      await bus.append(session, [...said, event('mark', i, null)])
      for (const { cursor, type, turn_id } of await keptIn(bus, session)) {
        if (turn_id !== null && isTerminal(type)) ended.add(turn_id)
        answers.push([name(cursor), type, turn_id])
      }
    } else if (one.do === 'read') {
      const { turn, begun } = one
      const isEnded = turn !== undefined && ended.has(turn)
      const after = one.after === undefined ? 'start' : (at(one.after) ?? 'start')
      const asked = { turn, after, begun: begun || isEnded, isEnded, mark: `mark ${i}` }
      answers.push(await readingOf(bus, session, asked, name))
    } else if (one.do === 'pastEnd') {
      const cursor = at(one.place)
      if (cursor) answers.push(await bus.pastEnd(session, one.turn, cursor, one.hasEnded))
    } else await bus.drop(session)
  }
  return answers
}

/** All events that a log keeps; there is at least one, and they are fewer than a page. */
async function keptIn(bus: Bus, session: string) {
  const { signal } = new AbortController()
  for await (const item of bus.read(session, { after: 'start', signal })) return eventsOf([item])
  throw new Error('the log is gone')
}

/**
 * What a read gives of the events that are there by now: up to its turn's end, else up to a marked event that this
 * function appends, which may be its turn's first. As in the routes, nobody reads on after a turn's end.
 */
async function readingOf(
  bus: Bus,
  session: string,
  asked: { turn: string | undefined; after: string; begun: boolean; isEnded: boolean; mark: string },
  name: (cursor: string) => number,
): Promise<unknown[]> {
  const { turn, after, begun, isEnded, mark } = asked
  if (turn && after !== 'start' && (await bus.pastEnd(session, turn, after, isEnded))) return ['past its end']
  const marked = event('turn.created', mark, turn ?? null)
  if (!isEnded) await bus.append(session, [marked])
  const read: unknown[] = []
  const signal = AbortSignal.timeout(30_000)
  for await (const item of bus.read(session, { ...(turn ? { turn } : {}), after, begun, signal })) {
    if ('lagged' in item) throw new Error('nothing here is slow')
    if ('gap' in item) return [...read, 'gap', name(item.cursor)]
    for (const { cursor, type, data } of item.events) {
      read.push([name(cursor), type, data])
      if (data === marked.data || (turn && isTerminal(type))) return read
    }
  }
  if (signal.aborted) throw new Error(`nothing comes after ${JSON.stringify(read)}`)
  return [...read, 'end']
}

t.test('the buses in memory and on Redis answer alike, whatever is said and asked', ON_REDIS, async (t) => {
  const limits = { maxEvents: 8 }
  const memory = createMemoryBus({ limits })
  t.teardown(() => memory.close())
  const redis = await redisBeds([11]).redis.open(t, limits)
  let runs = 0
  await fc.assert(
    fc.asyncProperty(fc.array(action, { maxLength: 60, size: 'max' }), async (actions) => {
      const session = `ses_${++runs}`
      const [one, other] = await Promise.all([memory, redis].map((bus) => answersOf(bus, session, actions)))
      deepStrictEqual(one, other)
    }),
    { numRuns: 200 },
  )
})
