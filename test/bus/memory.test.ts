/** What the bus in memory keeps, for how long, and for whom. */
import { getEventListeners } from 'node:events'
import { mock } from 'node:test'
import t from 'tap'
import type { BusEvent } from '../../src/bus/bus.ts'
import { createMemoryBus } from '../../src/bus/memory.ts'
import { Log } from '../../src/bus/memory-log.ts'
import { appended, delta, event, SESSION, start, TURN } from '../contracts/bus-bed.ts'

t.test('in memory cursors stay ordered and valid when the clock goes back', async (t) => {
  let clock = 5_000
  mock.method(Date, 'now', () => clock)
  t.teardown(() => mock.restoreAll())
  const bus = createMemoryBus()
  t.teardown(() => bus.close())
  const [before = ''] = await appended(bus, SESSION, [delta(1)])
  clock = 3_000
  const [after = ''] = await appended(bus, SESSION, [delta(2)])
  t.match(await start(t, bus, { after: before }).item(0), { events: [{ cursor: after }] })
  t.equal(after.split('-')[0], before.split('-')[0])
})

t.test('in memory a log that nobody uses is dropped; a log that is read or written stays', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  let clock = 0
  let ahead = 0
  mock.method(performance, 'now', () => clock)
  mock.method(Date, 'now', () => clock + ahead)
  t.teardown(() => mock.restoreAll())
  const bus = createMemoryBus({ limits: { idleMs: 1_000 } })
  t.teardown(() => bus.close())
  await bus.tally('calls', 90)
  const [idle = ''] = await appended(bus, 'ses_idle', [delta(1)])
  const [written = ''] = await appended(bus, 'ses_written', [delta(1)])
  const [read = ''] = await appended(bus, SESSION, [delta(1)])
  const reading = start(t, bus)
  await reading.events(1)
  clock = 900
  await bus.append('ses_written', [delta(2)])
  clock = 1_001
  // A wall clock that is set forward makes no log old.
  ahead = 86_400_000
  mock.timers.tick(60_000)
  t.equal(await bus.tally('calls', 90), 2, 'a count that has not had its time stays, too')
  await bus.append('ses_idle', [delta(2)])
  await bus.append(SESSION, [delta(2)])
  t.match(await start(t, bus, { after: idle }, 'ses_idle').item(0), { gap: true })
  const kept = start(t, bus, { after: written }, 'ses_written')
  t.match(await kept.item(0), { events: [{}] }, 'a log that is written stays')
  const again = start(t, bus, { after: read })
  t.equal((await again.events(1)).length, 1)
  await again.stop()
  clock = 2_500
  await reading.stop()
  mock.timers.tick(60_000)
  t.match(
    await start(t, bus, { after: read }).item(0),
    { events: [{}] },
    'a log stays for a while after its reader has left',
  )
})

t.test('in memory a reader whose next event is trimmed away is told that it lagged', async (t) => {
  const bus = createMemoryBus({ limits: { maxEvents: 10 } })
  t.teardown(() => bus.close())
  const { signal } = new AbortController()
  const reading = bus.read(SESSION, { after: 'start', signal })[Symbol.asyncIterator]()
  await bus.append(SESSION, [delta(1)])
  t.match(await reading.next(), { value: { events: [{ type: 'content.delta' }] } })
  for (let i = 0; i < 30; i++) await bus.append(SESSION, [delta(i)])
  t.strictSame(await reading.next(), { value: { lagged: true } })
  t.strictSame(getEventListeners(signal, 'abort'), [], 'nothing is left of the reader')
})

t.test('in memory a log keeps as many of its newest events as its bounds allow', async (t) => {
  const log = new Log(SESSION)
  // Each event weighs 300: 100 for its data, and 200 more.
  for (let i = 0; i < 10; i++) log.append({ type: 'message', turn_id: null, data: 'x'.repeat(100) })
  const kept = (maxEvents: number, maxBytes: number) => {
    log.trim(maxEvents, maxBytes)
    return [log.base, log.count, log.bytes]
  }
  t.strictSame(kept(20, 3000), [1, 10, 3000])
  t.strictSame(kept(8, 3000), [3, 8, 2400])
  t.strictSame(kept(8, 2399), [4, 7, 2100])
  t.strictSame(kept(8, 900), [8, 3, 900])
  t.equal(log.bytesBefore(9), 2400)
  const page = (most: number, bytes: number) => log.page(8, most, bytes).length
  t.strictSame([page(3, 900), page(2, 900), page(3, 899)], [3, 2, 2])
  t.strictSame(kept(0, 0), [11, 0, 0])
})

t.test('in memory what is known of a turn is forgotten with the events that tell it', async (t) => {
  const after = (log: Log, look: () => unknown) => (maxEvents: number) => {
    log.trim(maxEvents, Number.POSITIVE_INFINITY)
    return look()
  }
  const logOf = (...types: string[]) => {
    const log = new Log(SESSION)
    for (const [i, type] of types.entries()) log.append({ ...event(type), once: `${TURN}:${i}` })
    return log
  }
  const over = logOf('turn.created', 'turn.completed', 'mark')
  const marks = after(over, () => [over.startOf(null, { turn: TURN, begun: true }), over.isOver(TURN, 3)])
  t.strictSame([3, 2, 1].map(marks), [
    [1, true],
    [null, true],
    [null, false],
  ])
  const begun = logOf('turn.created', 'step.started', 'content.delta')
  const next = after(begun, () => begun.gap().next)
  t.strictSame([2, 1].map(next), [2, 4], 'behind a gap the step under way is told from its beginning')
  const types = ['turn.created', 'message', 'message', 'message', 'message', 'message']
  const keyed = logOf(...types)
  const again = after(keyed, () => {
    for (const [i, type] of types.entries()) keyed.append({ ...event(type), once: `${TURN}:${i}` })
    return keyed.count
  })
  t.equal(again(2), 4, 'of four keys whose events are gone, as many are known as events may be kept')
})

t.test('in memory all logs together are bounded, and the least recently used go first', async (t) => {
  let clock = 0
  mock.method(performance, 'now', () => ++clock)
  t.teardown(() => mock.restoreAll())
  const bus = createMemoryBus()
  t.teardown(() => bus.close())
  const large = 'x'.repeat(1 << 20)
  const fill = (session: string) =>
    appended(
      bus,
      session,
      Array.from({ length: 12 }, () => delta(large)),
    )
  // The first to begin is the last to be used.
  await bus.append('ses_5', [delta('begun')])
  const told: BusEvent = { ...event('message'), once: `${TURN}:msg_1` }
  await bus.append('ses_1', [told])
  const reading = start(t, bus, {}, 'ses_1')
  const cursors: string[] = []
  for (let i = 0; i < 6; i++) {
    const [first = ''] = await fill(`ses_${i}`)
    // Of a log that nobody reads nothing is kept, not even the place after its last event.
    cursors.push(i === 0 ? await bus.present('ses_0') : first)
    if (i === 1) await reading.events(13)
  }
  const next = (i: number) => start(t, bus, { after: cursors[i] ?? '' }, `ses_${i}`).item(0)
  t.match(await next(0), { gap: true })
  t.match(await next(1), { gap: true })
  t.ok('events' in (await next(5)))
  await bus.append('ses_1', [told, delta('more')])
  t.equal((await reading.events(14)).length, 14, 'what an unended turn announced is not said twice')
  t.same(
    reading.items.filter((item) => !('events' in item)),
    [],
    'a reader keeps its place in its log',
  )
})

t.test('in memory events that were trimmed away take no room from other logs', async (t) => {
  let count = 0
  const metrics = { eventsAppended: (more: number) => (count += more) }
  const bus = createMemoryBus({ limits: { maxBytes: 2 << 20 }, metrics })
  t.teardown(() => bus.close())
  const [cursor = ''] = await appended(bus, 'ses_quiet', [delta(1)])
  await bus.append('ses_quiet', [delta(2)])
  const large = delta('x'.repeat(1 << 20))
  for (let i = 0; i < 80; i++) await bus.append(SESSION, [large])
  const quiet = () => start(t, bus, { after: cursor }, 'ses_quiet').item(0)
  t.match(await quiet(), { events: [{}] })
  for (let i = 0; i < 70; i++) await bus.append(`ses_${i}`, [large])
  t.match(await quiet(), { gap: true }, 'what is kept takes room all the same')
  t.equal(count, 152)
})
