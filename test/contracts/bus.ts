/** What every bus must do, on every backend. */
import type { Test } from 'tap'
import { MAX_BUFFER, type ReadItem } from '../../src/bus/bus.ts'
import { held } from '../memory.ts'
import { eventually } from '../waiting.ts'
import {
  appended,
  type BusBed,
  bytes,
  delta,
  event,
  eventsOf,
  readAll,
  SESSION,
  start,
  textsOf,
} from './bus-bed.ts'
import { logContract } from './bus-logs.ts'

export function busContract(t: Test, bed: BusBed): void {
  logContract(t, bed)

  t.test('a reader too slow for its buffer is told so, and loses nothing when it resumes', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const abort = new AbortController()
    t.teardown(() => abort.abort())
    const slow = bus.read(SESSION, { after: 'start', signal: abort.signal })[Symbol.asyncIterator]()
    const quick = start(t, bus)
    await other.append(SESSION, [delta('first')])
    const items: ReadItem[] = []
    const next = async () => {
      const { value, done } = await slow.next()
      if (!done) items.push(value)
      return !done
    }
    await next()
    for (let i = 0; i < 40; i++) await other.append(SESSION, [delta(`${i}${'x'.repeat(MAX_BUFFER / 10)}`)])
    const all = await quick.events(41)
    while (await next());
    t.match(items.at(-1), { lagged: true })
    t.notOk(items.slice(0, -1).some((item) => 'lagged' in item))
    const had = eventsOf(items)
    t.ok(had.length < 41)
    const rest = eventsOf(await readAll(bus, { after: had.at(-1)?.cursor ?? '' }))
    t.equal(bytes([...had, ...rest]), bytes(all))
  })

  t.test(
    'a reader may be busy while an event larger than its buffer comes, and small ones after it',
    async (t) => {
      const bus = await bed.open(t)
      const other = await bed.another(t, bus)
      const abort = new AbortController()
      t.teardown(() => abort.abort())
      const reader = bus.read(SESSION, { after: 'start', signal: abort.signal })[Symbol.asyncIterator]()
      const quick = start(t, bus)
      const items: ReadItem[] = []
      // The first event may come from the log, and stay in the buffer, too, until the next event comes.
      for (let i = 1; i < 3; i++) {
        await other.append(SESSION, [delta(i)])
        items.push((await reader.next()).value)
      }
      for (const text of ['x'.repeat(MAX_BUFFER + 1), 'small', 'smaller'])
        await other.append(SESSION, [delta(text)])
      const all = await quick.events(5)
      while (eventsOf(items).length < 5) {
        const { value } = await reader.next()
        items.push(value)
        if (!value || 'lagged' in value) break
      }
      t.equal(bytes(eventsOf(items)), bytes(all))
    },
  )

  t.test('a reader that keeps up gets an event larger than its buffer', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const reading = start(t, bus)
    // The first event may come from the log, and stay in the buffer, too, until the next event comes.
    for (let i = 1; i < 3; i++) {
      await other.append(SESSION, [delta(i)])
      await reading.events(i)
    }
    for (let i = 3; i < 6; i++) {
      await other.append(SESSION, [delta('x'.repeat(MAX_BUFFER + 1))])
      t.equal((await reading.events(i)).length, i)
    }
  })

  t.test('history longer than the buffer does not count as lag', async (t) => {
    const bus = await bed.open(t)
    for (let i = 0; i < 30; i++) {
      await bus.append(
        SESSION,
        Array.from({ length: 50 }, (_, j) => delta(`${i}.${j}${'x'.repeat(MAX_BUFFER / 1000)}`)),
      )
    }
    const reading = start(t, bus)
    t.equal((await reading.events(1500)).length, 1500)
    t.ok(reading.items.length > 1, 'the history comes in pages')
  })

  t.test(
    'history with events larger than a page is read to its end, and comes in small pieces',
    async (t) => {
      const bus = await bed.open(t)
      const large = 'x'.repeat(600 << 10)
      await bus.append(SESSION, [delta(1), delta(large), delta(large), delta(2)])
      const reading = start(t, bus)
      t.same(textsOf(await reading.events(4)), [1, large, large, 2])
      t.strictSame(
        reading.items.map((item) => eventsOf([item]).length),
        [1, 1, 1, 1],
      )
    },
  )

  t.test('a thousand idle readers cost little, and an event wakes only its session’s reader', async (t) => {
    const bus = await bed.open(t)
    const sessions = Array.from({ length: 1000 }, (_, i) => `ses_${i}`)
    const before = await held('heapUsed')
    const readings = sessions.map((session) => start(t, bus, {}, session))
    await bus.append('ses_999', [delta('for the last')])
    await readings[999]?.events(1)
    await bus.append('ses_500', [delta('for one')])
    await readings[500]?.events(1)
    const each = ((await held('heapUsed')) - before) / 1000
    t.ok(each < 16_000, `each reader takes ${Math.round(each)} bytes`)
    t.equal(readings.filter(({ items }) => items.length > 0).length, 2)
    await Promise.all(readings.map((reading) => reading.stop()))
  })

  t.test('dropping a session ends its reads and its log', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const [cursor = ''] = await appended(bus, SESSION, [event('turn.created')])
    const reading = start(t, other)
    await reading.events(1)
    await bus.drop(SESSION)
    await reading.ended
    t.equal(reading.items.length, 1)
    t.match(await start(t, bus, { after: cursor }).item(0), { gap: true })
    await bus.drop('ses_never_was')
  })

  t.test('messages on a topic reach every replica that is subscribed to it', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const heard: string[] = []
    await t.resolves(bus.publish('keys', 'nobody hears it'))
    const on = (name: string) => (message: string) => void heard.push(`${name}:${message}`)
    bus.subscribe('control', on('a'))
    other.subscribe('control', on('b'))
    other.subscribe('queue', on('queue'))
    // The subscriptions may still be under way. The message is repeated until both subscribers have it.
    await eventually(async () => {
      await bus.publish('control', 'ready')
      return heard.includes('a:ready') && heard.includes('b:ready')
    })
    // The last of the repetitions may still be on its way.
    const since = () => heard.filter((message) => !message.endsWith('ready'))
    const publishing = other.publish('control', 'one')
    t.same(since(), [], 'no subscriber is called within `publish`')
    await publishing
    await eventually(() => since().length >= 2)
    await bus.publish('queue', 'ses_1')
    await eventually(() => since().length >= 3)
    t.same(since().sort(), ['a:one', 'b:one', 'queue:ses_1'])
  })

  t.test('replicas share the count of each name, and forget it after its time', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    await Promise.all([bus.ready(), other.ready()])
    const name = `count-${Math.random()}`
    const counts = await Promise.all([1, 2, 3, 4].map((n) => (n % 2 ? bus : other).tally(name, 60)))
    t.same(counts.sort(), [1, 2, 3, 4])
    t.equal(await other.tally(`${name}-other`, 1), 1)
    await new Promise((resolve) => setTimeout(resolve, 1_050))
    t.equal(await bus.tally(`${name}-other`, 1), 1, 'the count begins anew after its second')
    t.equal(await bus.tally(name, 60), 5)
  })

  t.test('closing ends the reads', async (t) => {
    const bus = await bed.open(t)
    await bus.ready()
    const reading = start(t, bus)
    await bus.append(SESSION, [delta(1)])
    await reading.events(1)
    await bus.close()
    await reading.ended
  })
}
