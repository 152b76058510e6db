/** What every bus must do, whatever it stands on. */
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import type { Test } from 'tap'
import type { Bus, BusEvent, LoggedEvent, ReadItem, ReadOptions } from '../../src/bus/bus.ts'
import type { LogLimits } from '../../src/bus/limits.ts'
import { encodeEvent } from '../../src/sse.ts'

export interface BusBed {
  /** A bus on a backend of its own; closed when the test ends. */
  open(t: Test, limits?: Partial<LogLimits>): Promise<Bus>
  /** Another replica's view of the same backend; the same one where there are no replicas. */
  another(t: Test, bus: Bus, limits?: Partial<LogLimits>): Promise<Bus>
  /** Everything that the bus kept is gone (flush, restart): the bus that clients meet then. */
  lose(t: Test, bus: Bus): Promise<Bus>
}

const SESSION = 'ses_one'
const TURN = 'turn_one'

export const event = (type: string, text: string | number = '', turn: string | null = TURN): BusEvent => ({
  type,
  turn_id: turn,
  data: JSON.stringify({ type, text }),
})
const delta = (text: string | number, turn: string | null = TURN) => event('content.delta', text, turn)
const wholeTurn = (turn: string, deltas = 5): BusEvent[] => [
  event('turn.created', '', turn),
  ...Array.from({ length: deltas }, (_, i) => delta(i, turn)),
  event('turn.completed', '', turn),
]

export interface Reading {
  items: ReadItem[]
  /** Settles when this many events have come, or a `gap`, `lagged` or end was met after `items`. */
  events(count: number): Promise<LoggedEvent[]>
  item(count: number): Promise<ReadItem>
  ended: Promise<void>
  stop(): Promise<void>
}

/** Reads in the background until it is stopped. */
export function start(t: Test, bus: Bus, options: Partial<ReadOptions> = {}, session = SESSION): Reading {
  const abort = new AbortController()
  const items: ReadItem[] = []
  let told = () => {}
  let isOver = false
  const ended = (async () => {
    for await (const item of bus.read(session, { after: 'start', signal: abort.signal, ...options })) {
      items.push(item)
      told()
    }
  })().finally(() => {
    isOver = true
    told()
  })
  ended.catch(() => {})
  const until = async (isThere: () => boolean) => {
    while (!isThere()) {
      if (isOver) throw new Error(`the read ended with ${JSON.stringify(items)}`)
      await new Promise<void>((resolve) => {
        told = resolve
      })
    }
  }
  const stop = async () => {
    abort.abort()
    await ended.catch(() => {})
  }
  t.teardown(stop)
  return {
    items,
    ended,
    stop,
    async events(count) {
      await until(() => eventsOf(items).length >= count)
      return eventsOf(items)
    },
    async item(count) {
      await until(() => items.length > count)
      const item = items[count]
      if (!item) throw new Error('unreachable')
      return item
    },
  }
}

export const eventsOf = (items: ReadItem[]): LoggedEvent[] =>
  items.flatMap((item) => ('events' in item ? item.events : []))
export const bytes = (events: LoggedEvent[]): string =>
  events.map(({ cursor, type, data }) => encodeEvent(type, data, cursor)).join('')
const textsOf = (events: LoggedEvent[]): unknown[] => events.map(({ data }) => JSON.parse(data).text)

/** What a read holds up to the end of what is there now, which an own event marks. */
async function readAll(bus: Bus, options: Partial<ReadOptions> = {}, session = SESSION) {
  const abort = new AbortController()
  const [mark] = await bus.append(session, [event('mark', '', options.turn ?? null)])
  const items: ReadItem[] = []
  for await (const item of bus.read(session, { after: 'start', signal: abort.signal, ...options })) {
    if ('events' in item) {
      const events = item.events.filter(({ type }) => type !== 'mark')
      if (events.length > 0) items.push({ events })
    } else items.push(item)
    if ('gap' in item || ('events' in item && item.events.some(({ cursor }) => cursor === mark))) break
  }
  return items
}

setFlagsFromString('--expose-gc')
const collect: () => void = runInNewContext('gc')

/** What the heap holds, without what only waits for the collector. */
function heldBytes(): number {
  collect()
  return process.memoryUsage().heapUsed
}

/** Milliseconds and counter of a cursor. */
const orderOf = (cursor: string) => (/^(\d+)-(\d+)\./.exec(cursor) ?? []).slice(1).map(Number)
function ascends(cursors: string[]): boolean {
  return cursors.every((cursor, i) => {
    const [ms = 0, n = 0] = orderOf(cursor)
    const [beforeMs = 0, beforeN = -1] = i === 0 ? [] : orderOf(cursors[i - 1] ?? '')
    return ms > beforeMs || (ms === beforeMs && n > beforeN)
  })
}

export function busContract(t: Test, bed: BusBed): void {
  t.test('an event comes out as it went in, to early and late readers alike', async (t) => {
    const bus = await bed.open(t)
    const early = start(t, bus)
    const said = [event('turn.created'), delta('Grüße, 世界 🌍 "\\n"'), event('tools.changed', 'x', null)]
    const cursors = await bus.append(SESSION, said)
    t.equal(new Set(cursors).size, 3)
    const got = await early.events(3)
    t.same(
      got,
      said.map(({ type, turn_id, data }, i) => ({ cursor: cursors[i], type, turn_id, data })),
    )
    t.equal(bytes(eventsOf(await readAll(bus))), bytes(got))
    t.same(await readAll(bus, {}, 'ses_other'), [], 'another session has none of it')
    t.same(await bus.append(SESSION, []), [])
  })

  t.test('all readers see one order, in which every writer’s own order is kept', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const readers = [start(t, bus), start(t, other), start(t, other, { after: 'now' })]
    await bus.append(SESSION, [delta('first')])
    const write = async (from: Bus, name: string) => {
      const cursors: string[] = []
      for (let i = 0; i < 30; i++) {
        cursors.push(...(await from.append(SESSION, [delta(`${name}${i}`), delta(`${name}${i}b`)])))
      }
      return cursors
    }
    const cursors = await Promise.all([
      write(bus, 'a'),
      write(bus, 'b'),
      write(other, 'c'),
      write(other, 'd'),
    ])
    const [one, two] = await Promise.all(readers.slice(0, 2).map((reader) => reader.events(241)))
    t.equal(bytes(one ?? []), bytes(two ?? []))
    t.ok(ascends((one ?? []).map(({ cursor }) => cursor)))
    for (const [i, name] of ['a', 'b', 'c', 'd'].entries()) {
      const own = (one ?? []).filter(({ data }) => JSON.parse(data).text.startsWith(name))
      t.same(
        own.map(({ cursor }) => cursor),
        cursors[i],
      )
    }
    t.equal(bytes(eventsOf(await readAll(other))), bytes(one ?? []))
  })

  t.test('a reader that comes back after any event gets exactly the rest, live or not', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const script = [...wholeTurn(TURN, 6), event('tools.changed', '', null), ...wholeTurn('turn_two', 6)]
    const continuous = start(t, bus)
    for (const said of script.slice(0, 10)) await bus.append(SESSION, [said])
    const before = await continuous.events(10)
    const resumed = before.map(({ cursor }) => start(t, other, { after: cursor }))
    for (const said of script.slice(10)) await other.append(SESSION, [said])
    const all = await continuous.events(script.length)
    for (const [i, reading] of resumed.entries()) {
      t.equal(bytes(await reading.events(script.length - i - 1)), bytes(all.slice(i + 1)), `after ${i}`)
    }
    for (const [i, { cursor }] of all.entries()) {
      t.equal(bytes(eventsOf(await readAll(other, { after: cursor }))), bytes(all.slice(i + 1)))
    }
  })

  t.test('a turn’s read starts at its first event, holds no others, and ends with its end', async (t) => {
    const bus = await bed.open(t)
    const waiting = start(t, bus, { turn: TURN })
    await bus.append(SESSION, [event('tools.changed', '', null), ...wholeTurn('turn_before')])
    const cursors = await bus.append(SESSION, [event('turn.created'), delta(1)])
    const midway = start(t, bus, { turn: TURN })
    await bus.append(SESSION, [event('tools.changed', '', null), delta(2), event('turn.failed')])
    await bus.append(SESSION, wholeTurn('turn_after'))
    const late = start(t, bus, { turn: TURN })
    const resumed = start(t, bus, { turn: TURN, after: cursors[1] ?? '' })
    await Promise.all([waiting.ended, midway.ended, late.ended, resumed.ended])
    const expected = ['turn.created', 'content.delta', 'content.delta', 'turn.failed']
    for (const reading of [waiting, midway, late]) {
      t.same(
        eventsOf(reading.items).map(({ type }) => type),
        expected,
      )
    }
    t.equal(bytes(eventsOf(resumed.items)), bytes(eventsOf(late.items).slice(2)))
    const end = eventsOf(late.items).at(-1)?.cursor ?? ''
    const atEnd = start(t, bus, { turn: TURN, after: end })
    await atEnd.ended
    t.same(atEnd.items, [])
  })

  t.test('`now` skips what there is, `start` does not', async (t) => {
    const bus = await bed.open(t)
    await bus.append(SESSION, [delta('old')])
    const now = start(t, bus, { after: 'now' })
    const all = start(t, bus)
    await all.events(1)
    // A read begins with its first `next`; the mark of a second reader shows that it has.
    const probe = start(t, bus, { after: 'now' })
    for (let i = 0; probe.items.length === 0 || now.items.length === 0; i++) {
      await bus.append(SESSION, [delta(`new${i}`)])
      await new Promise((resolve) => setTimeout(resolve, 5))
    }
    t.notOk(textsOf(eventsOf(now.items)).includes('old'))
    t.equal(textsOf(await all.events(2))[0], 'old')
  })

  t.test('a former owner’s words are dropped, and all of a turn’s after its end', async (t) => {
    const bus = await bed.open(t)
    const said = (epoch: number, one: BusEvent): BusEvent => ({ ...one, epoch })
    await bus.append(SESSION, [said(1, event('turn.created')), said(1, delta('first'))])
    await bus.append(SESSION, [said(2, delta('second'))])
    const [place] = await bus.append(SESSION, [said(1, delta('stale'))])
    t.type(place, 'string', 'told where the log stands')
    await bus.append(SESSION, [delta('of nobody'), said(2, event('turn.completed', 'end'))])
    await bus.append(SESSION, [said(2, delta('straggler')), said(3, event('turn.created', 'next', 'turn_2'))])
    const reading = start(t, bus)
    t.same(textsOf(await reading.events(6)), ['', 'first', 'second', 'of nobody', 'end', 'next'])
  })

  t.test('a turn’s last words are heard, however early the next one’s owner speaks', async (t) => {
    const bus = await bed.open(t)
    const said = (epoch: number, turn: string, type: string): BusEvent => ({
      ...event(type, type, turn),
      epoch,
    })
    await bus.append(SESSION, [said(1, 'turn_1', 'turn.created')])
    await bus.append(SESSION, [said(3, 'turn_3', 'turn.created'), said(3, 'turn_3', 'turn.started')])
    await bus.append(SESSION, [said(1, 'turn_1', 'step.completed'), said(1, 'turn_1', 'turn.completed')])
    // As fast a turn, of whose beginning nothing had come yet.
    await bus.append(SESSION, [said(2, 'turn_2', 'turn.created'), said(2, 'turn_2', 'turn.completed')])
    const types = (reading: ReturnType<typeof start>, count: number) =>
      reading.events(count).then((events) => events.map(({ type }) => type))
    const first = start(t, bus, { turn: 'turn_1', after: 'start' })
    t.same(await types(first, 3), ['turn.created', 'step.completed', 'turn.completed'])
    t.same(await types(start(t, bus, { turn: 'turn_2', after: 'start' }), 2), [
      'turn.created',
      'turn.completed',
    ])
    await bus.append(SESSION, [said(1, 'turn_1', 'usage'), said(2, 'turn_0', 'usage')])
    await bus.append(SESSION, [said(3, 'turn_3', 'usage')])
    t.same(
      (await types(start(t, bus), 8)).slice(3),
      ['step.completed', 'turn.completed', 'turn.created', 'turn.completed', 'usage'],
      'nothing of a turn that is over, or of whose beginning nobody knows',
    )
  })

  t.test('a repeat under a known key is dropped and answered with the first one’s cursor', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const keyed = (key: string, text: string): BusEvent => ({ ...delta(text), once: key })
    const [a, b] = await bus.append(SESSION, [keyed('a', 'a'), keyed('b', 'b')])
    const again = await other.append(SESSION, [keyed('a', 'again'), delta('c'), keyed('b', 'again')])
    t.equal(again[0], a)
    t.equal(again[2], b)
    const twice = await bus.append(SESSION, [keyed('d', 'd'), keyed('d', 'd again')])
    t.equal(twice[0], twice[1])
    const reading = start(t, other)
    t.same(textsOf(await reading.events(4)), ['a', 'b', 'c', 'd'])
    const [elsewhere] = await bus.append('ses_other', [keyed('a', 'a')])
    t.not(elsewhere, a, 'keys belong to their session')
  })

  t.test('a place that is no longer kept is a gap, and live events follow it', async (t) => {
    const limits = { maxEvents: 20 }
    const bus = await bed.open(t, limits)
    const cursors: string[] = []
    for (let i = 0; i < 50; i++) cursors.push(...(await bus.append(SESSION, [delta(i)])))
    for (const [i, after] of cursors.slice(0, -1).entries()) {
      const item = await start(t, bus, { after }).item(0)
      if ('events' in item) t.equal(textsOf(item.events)[0], i + 1, 'the very next one, or a gap')
      else t.match(item, { gap: true })
    }
    for (const after of [cursors[0] ?? '', cursors[20] ?? '']) {
      const reading = start(t, bus, { after })
      const gap = await reading.item(0)
      t.match(gap, { gap: true })
      const [next] = await bus.append(SESSION, [delta('live')])
      t.same(
        (await reading.events(1)).map(({ cursor }) => cursor),
        [next],
      )
      const resumed = start(t, bus, { after: 'cursor' in gap ? gap.cursor : '' })
      t.same(await resumed.events(1), await reading.events(1), 'the gap’s own cursor is a place')
    }
    const kept = start(t, bus, { after: cursors[45] ?? '' })
    t.same(textsOf(await kept.events(6)), [46, 47, 48, 49, 'live', 'live'])
    const oldest = eventsOf(await readAll(bus))
    t.ok(oldest.length <= 22 && oldest.length >= 15, `${oldest.length} are kept`)
    t.same(textsOf(oldest).slice(-3), [49, 'live', 'live'])
  })

  t.test('a log is bounded in bytes too', async (t) => {
    const bus = await bed.open(t, { maxBytes: 100_000 })
    for (let i = 0; i < 30; i++) await bus.append(SESSION, [delta('x'.repeat(10_000))])
    const kept = eventsOf(await readAll(bus))
    t.ok(kept.length >= 5 && kept.length <= 10, `${kept.length} are kept`)
    const [cursor = ''] = await bus.append(SESSION, [delta('y'.repeat(200_000))])
    const [after] = await bus.append(SESSION, [delta('after')])
    t.equal((await start(t, bus, { after: cursor }).events(1))[0]?.cursor, after)
  })

  t.test('a turn whose first event is gone is a gap; a turn not begun is waited for', async (t) => {
    const bus = await bed.open(t, { maxEvents: 20 })
    await bus.append(SESSION, [event('turn.created'), ...Array.from({ length: 40 }, (_, i) => delta(i))])
    t.match(await start(t, bus, { turn: TURN }).item(0), { gap: true })
    const unknown = start(t, bus, { turn: 'turn_new' })
    t.match(await start(t, bus, { turn: 'turn_lost', begun: true }).item(0), { gap: true })
    await bus.append(SESSION, wholeTurn('turn_new', 1))
    t.equal((await unknown.events(3)).length, 3)
    await bus.append(SESSION, [event('turn.failed')])
    const ended = start(t, bus, { turn: TURN })
    await ended.ended
    t.match(ended.items, [{ gap: true }], 'after the gap of an ended turn nothing comes')
    await bus.append(SESSION, [delta('first known', 'turn_half')])
    t.match(await start(t, bus, { turn: 'turn_half' }).item(0), { gap: true }, 'its beginning was never here')
  })

  t.test('after a loss every old cursor is a gap, and nothing old counts as known', async (t) => {
    const bus = await bed.open(t)
    const cursors = await bus.append(SESSION, wholeTurn(TURN, 3))
    await bus.append(SESSION, [{ ...delta('once'), once: 'key' }])
    // No loss is over within the millisecond by which cursors are ordered.
    await sleep(2)
    const after = await bed.lose(t, bus)
    const empty = start(t, after, { after: cursors[1] ?? '' })
    t.match(await empty.item(0), { gap: true })
    const [again] = await after.append(SESSION, [{ ...delta('once'), once: 'key' }])
    t.same(textsOf(await empty.events(1)), ['once'])
    t.ok(ascends([...cursors, again ?? '']), 'cursors stay ordered')
    // As long as the old one was: what it numbered is there again, and is something else.
    await after.append(SESSION, wholeTurn(TURN, 9))
    t.match(
      await start(t, after, { after: cursors[1] ?? '' }).item(0),
      { gap: true },
      'also once there is a new log',
    )
    t.equal(await after.pastEnd(SESSION, TURN, cursors[4] ?? '', true), false)
  })

  t.test('pastEnd tells the terminal event’s cursor and later ones from earlier ones', async (t) => {
    const bus = await bed.open(t)
    const cursors = await bus.append(SESSION, [...wholeTurn(TURN, 2), event('tools.changed', '', null)])
    const answers = await Promise.all(cursors.map((cursor) => bus.pastEnd(SESSION, TURN, cursor, true)))
    t.same(answers, [false, false, false, true, true])
    t.equal(await bus.pastEnd(SESSION, 'turn_unknown', cursors[4] ?? '', false), false)
  })

  t.test('a place after the end of a turn that the log has forgotten is past it', async (t) => {
    const bus = await bed.open(t, { maxEvents: 20 })
    const [begin = ''] = await bus.append(SESSION, wholeTurn(TURN, 2))
    await bus.append(SESSION, [event('turn.created', '', 'turn_2')])
    const [, ...cursors] = await bus.append(
      SESSION,
      Array.from({ length: 40 }, (_, i) => delta(i, 'turn_2')),
    )
    const [kept = ''] = cursors.slice(-1)
    t.equal(await bus.pastEnd(SESSION, TURN, kept, true), true)
    t.equal(await bus.pastEnd(SESSION, TURN, kept, false), false, 'one that is not over may come yet')
    t.equal(await bus.pastEnd(SESSION, TURN, begin, true), false, 'what lies after it is a gap')
    t.equal(await bus.pastEnd(SESSION, 'turn_2', kept, true), false, 'its end is not said yet')
    const ahead = kept.replace(/^\d+/, (ms) => String(Number(ms) + 1_000_000))
    t.equal(await bus.pastEnd(SESSION, TURN, ahead, true), false, 'a place of the future was lost')
  })

  t.test('a cursor that is none, or another session’s, is refused', async (t) => {
    const bus = await bed.open(t)
    const [cursor = ''] = await bus.append(SESSION, [delta(1)])
    const { signal } = new AbortController()
    for (const after of ['', 'x', '1-0', `${cursor}0`, cursor.toUpperCase().replace('-', '_'), '0']) {
      t.throws(() => bus.read(SESSION, { after, signal }), { code: 'invalid_cursor', status: 400 }, after)
      await t.rejects(bus.pastEnd(SESSION, TURN, after, false), { code: 'invalid_cursor' })
    }
    t.throws(() => bus.read('ses_other', { after: cursor, signal }), { code: 'invalid_cursor' })
    await t.rejects(bus.pastEnd('ses_other', TURN, cursor, false), { code: 'invalid_cursor' })
    for (const number of [/^\d+/, /(?<=-)\d+/]) {
      const ahead = cursor.replace(number, (digits) => String(Number(digits) + 1_000_000))
      t.match(await start(t, bus, { after: ahead }).item(0), { gap: true }, 'one of the future was lost')
    }
  })

  t.test('a reader too slow for its buffer is told, and loses nothing by coming back', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const abort = new AbortController()
    t.teardown(() => abort.abort())
    const options = { after: 'start', signal: abort.signal, maxBuffer: 50_000 }
    const slow = bus.read(SESSION, options)[Symbol.asyncIterator]()
    const quick = start(t, bus)
    await other.append(SESSION, [delta('first')])
    const items: ReadItem[] = []
    const next = async () => {
      const { value, done } = await slow.next()
      if (!done) items.push(value)
      return !done
    }
    await next()
    for (let i = 0; i < 40; i++) await other.append(SESSION, [delta(`${i}${'x'.repeat(5000)}`)])
    const all = await quick.events(41)
    while (await next());
    t.match(items.at(-1), { lagged: true })
    t.notOk(items.slice(0, -1).some((item) => 'lagged' in item))
    const had = eventsOf(items)
    t.ok(had.length < 41)
    const rest = eventsOf(await readAll(bus, { after: had.at(-1)?.cursor ?? '' }))
    t.equal(bytes([...had, ...rest]), bytes(all))
  })

  t.test('a reader that keeps up gets an event larger than its buffer', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const reading = start(t, bus, { maxBuffer: 1000 })
    await other.append(SESSION, [delta('first')])
    await reading.events(1)
    for (let i = 2; i < 5; i++) {
      await other.append(SESSION, [delta('x'.repeat(5000))])
      t.equal((await reading.events(i)).length, i)
    }
  })

  t.test('history longer than the buffer is no lag', async (t) => {
    const bus = await bed.open(t)
    for (let i = 0; i < 30; i++) {
      await bus.append(
        SESSION,
        Array.from({ length: 50 }, (_, j) => delta(`${i}.${j}${'x'.repeat(500)}`)),
      )
    }
    const reading = start(t, bus, { maxBuffer: 1000 })
    t.equal((await reading.events(1500)).length, 1500)
    t.ok(reading.items.length > 1, 'in pages')
  })

  t.test('history with an event larger than a page is read on, past it', async (t) => {
    const bus = await bed.open(t)
    const large = 'x'.repeat(600 << 10)
    await bus.append(SESSION, [delta(1), delta(large), delta(large), delta(2)])
    t.same(textsOf(await start(t, bus).events(4)), [1, large, large, 2])
  })

  t.test('a thousand idle readers cost little, and one event wakes only its own', async (t) => {
    const bus = await bed.open(t)
    const sessions = Array.from({ length: 1000 }, (_, i) => `ses_${i}`)
    const before = heldBytes()
    const readings = sessions.map((session) => start(t, bus, {}, session))
    await bus.append('ses_999', [delta('for the last')])
    await readings[999]?.events(1)
    await bus.append('ses_500', [delta('for one')])
    await readings[500]?.events(1)
    const each = (heldBytes() - before) / 1000
    t.ok(each < 16_000, `${Math.round(each)} bytes each`)
    t.equal(readings.filter(({ items }) => items.length > 0).length, 2)
    await Promise.all(readings.map((reading) => reading.stop()))
  })

  t.test('a dropped session ends its reads and keeps nothing', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const [cursor = ''] = await bus.append(SESSION, [event('turn.created')])
    const reading = start(t, other)
    await reading.events(1)
    await bus.drop(SESSION)
    await reading.ended
    t.equal(reading.items.length, 1)
    t.match(await start(t, bus, { after: cursor }).item(0), { gap: true })
    await bus.drop('ses_never_was')
  })

  t.test('messages on a topic reach every replica, and only while subscribed', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const heard: string[] = []
    let told = () => {}
    const on = (name: string) => (message: string) => {
      heard.push(`${name}:${message}`)
      told()
    }
    const until = async (count: number) => {
      while (heard.length < count) {
        await new Promise<void>((resolve) => {
          told = resolve
        })
      }
    }
    const stop = bus.subscribe('control', on('a'))
    other.subscribe('control', on('b'))
    other.subscribe('queue', on('queue'))
    // Subscribing is under way; a message is repeated until both have it.
    while (!heard.includes('a:ready') || !heard.includes('b:ready')) {
      await bus.publish('control', 'ready')
      await new Promise((resolve) => setTimeout(resolve, 5))
    }
    await new Promise((resolve) => setTimeout(resolve, 20))
    heard.length = 0
    const publishing = other.publish('control', 'one')
    t.same(heard, [], 'never inside of the publisher')
    await publishing
    await until(2)
    stop()
    await bus.publish('control', 'two')
    await until(3)
    await bus.publish('queue', 'ses_1')
    await until(4)
    t.same(heard.sort(), ['a:one', 'b:one', 'b:two', 'queue:ses_1'])
  })

  t.test('replicas count together, each name apart, and forget', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    await Promise.all([bus.ready(), other.ready()])
    const name = `count-${Math.random()}`
    const counts = await Promise.all([1, 2, 3, 4].map((n) => (n % 2 ? bus : other).tally(name, 60)))
    t.same(counts.sort(), [1, 2, 3, 4])
    t.equal(await other.tally(`${name}-other`, 1), 1)
    await new Promise((resolve) => setTimeout(resolve, 1_050))
    t.equal(await bus.tally(`${name}-other`, 1), 1, 'its second is over')
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
