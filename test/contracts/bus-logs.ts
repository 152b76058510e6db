/** What every bus must do with a session's log: keep its order, and say what is lost. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import type { Bus, BusEvent } from '../../src/bus/bus.ts'
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
  TURN,
  textsOf,
  wholeTurn,
} from './bus-bed.ts'

/** As texts: clients, to whom cursors are opaque, cannot compare them otherwise. */
const ascends = (cursors: string[]): boolean =>
  cursors.every((cursor, i) => i === 0 || cursor > (cursors[i - 1] ?? ''))

/** All readers see one order, and a gap where events were lost. */
export function logContract(t: Test, bed: BusBed): void {
  t.test('early and late readers get an event exactly as it was appended', async (t) => {
    const bus = await bed.open(t)
    const early = start(t, bus)
    const said = [event('turn.created'), delta('Grüße, 世界 🌍 "\\n"'), event('tools.changed', 'x', null)]
    await bus.append(SESSION, said)
    const got = await early.events(3)
    t.same(
      got.map(({ cursor, ...event }) => event),
      said,
    )
    t.equal(new Set(got.map(({ cursor }) => cursor)).size, 3)
    t.equal(bytes(eventsOf(await readAll(bus))), bytes(got))
    t.same(await readAll(bus, {}, 'ses_other'), [], 'another session has no events of this one')
  })

  t.test('all readers see the same order, which keeps the order of each writer', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const after = await bus.present(SESSION)
    const readers = [start(t, bus), start(t, other), start(t, other, { after })]
    await bus.append(SESSION, [delta('first')])
    const pairs = (name: string) =>
      Array.from({ length: 30 }, (_, i) => [delta(`${name}${i}`), delta(`${name}${i}b`)])
    const write = async (from: Bus, name: string) => {
      for (const pair of pairs(name)) await from.append(SESSION, pair)
    }
    await Promise.all([write(bus, 'a'), write(bus, 'b'), write(other, 'c'), write(other, 'd')])
    const [one, ...others] = await Promise.all(readers.map((reader) => reader.events(241)))
    for (const another of others) t.equal(bytes(one ?? []), bytes(another))
    t.ok(ascends((one ?? []).map(({ cursor }) => cursor)))
    for (const name of ['a', 'b', 'c', 'd']) {
      const own = textsOf(one ?? []).filter((text) => String(text).startsWith(name))
      t.same(
        own,
        pairs(name)
          .flat()
          .map(({ data }) => JSON.parse(data).text),
      )
    }
    t.equal(bytes(eventsOf(await readAll(other))), bytes(one ?? []))
  })

  t.test('a reader that resumes after any event gets exactly the rest, live or not', async (t) => {
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

  t.test('a read of a turn has only the turn’s events, from its first to its terminal one', async (t) => {
    const bus = await bed.open(t)
    const waiting = start(t, bus, { turn: TURN })
    await bus.append(SESSION, [event('tools.changed', '', null), ...wholeTurn('turn_before')])
    const cursors = await appended(bus, SESSION, [event('turn.created'), delta(1)])
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
      t.ok(reading.items.every((item) => 'events' in item && item.events.length > 0))
    }
    t.equal(bytes(eventsOf(resumed.items)), bytes(eventsOf(late.items).slice(2)))
    const end = eventsOf(late.items).at(-1)?.cursor ?? ''
    const atEnd = start(t, bus, { turn: TURN, after: end })
    await atEnd.ended
    t.same(atEnd.items, [])
  })

  t.test('a reader from the present on hears all that is said after that, and nothing before', async (t) => {
    const bus = await bed.open(t)
    await bus.append(SESSION, [delta('old')])
    const after = await bus.present(SESSION)
    await bus.append(SESSION, [delta('new')])
    t.same(textsOf(await start(t, bus, { after }).events(1)), ['new'])
    t.same(textsOf(await start(t, bus).events(2)), ['old', 'new'])
    const empty = await bus.present('ses_other')
    await bus.append('ses_other', [delta('first')])
    const reading = start(t, bus, { after: empty }, 'ses_other')
    t.same(textsOf(await reading.events(1)), ['first'], 'also where nothing was said yet')
  })

  t.test('a reader from the oldest event on hears all that is kept, or of the loss of it', async (t) => {
    const bus = await bed.open(t, { maxEvents: 4 })
    const places = [await bus.oldest(SESSION)]
    await bus.append(SESSION, [delta(1), delta(2)])
    places.push(await bus.oldest(SESSION))
    for (const after of places) t.same(textsOf(await start(t, bus, { after }).events(2)), [1, 2])
    await bus.append(SESSION, [delta(3), delta(4), delta(5)])
    const trimmed = await bus.oldest(SESSION)
    t.same(textsOf(await start(t, bus, { after: trimmed }).events(3)), [3, 4, 5])
    await bus.drop(SESSION)
    t.match(await start(t, bus, { after: trimmed }).item(0), { gap: true })
  })

  t.test('events of a former owner are dropped, and all events of a turn after its end', async (t) => {
    const bus = await bed.open(t)
    const said = (epoch: number, one: BusEvent): BusEvent => ({ ...one, epoch })
    await bus.append(SESSION, [said(1, event('turn.created')), said(1, delta('first'))])
    await bus.append(SESSION, [said(2, delta('second'))])
    await bus.append(SESSION, [said(1, delta('stale'))])
    await bus.append(SESSION, [delta('of nobody'), said(1, delta('still stale'))])
    await bus.append(SESSION, [said(2, event('turn.completed', 'end'))])
    await bus.append(SESSION, [said(2, delta('straggler')), delta('of nobody, late')])
    await bus.append(SESSION, [said(3, event('turn.created', 'next', 'turn_2'))])
    const reading = start(t, bus)
    const kept = ['', 'first', 'second', 'of nobody', 'end', 'of nobody, late', 'next']
    t.same(textsOf(await reading.events(7)), kept)
  })

  t.test('a turn’s last events are kept although a later turn’s owner has spoken before', async (t) => {
    const bus = await bed.open(t)
    const said = (epoch: number, turn: string, type: string): BusEvent => ({
      ...event(type, type, turn),
      epoch,
    })
    await bus.append(SESSION, [said(1, 'turn_1', 'turn.created')])
    await bus.append(SESSION, [said(3, 'turn_3', 'turn.created'), said(3, 'turn_3', 'turn.started')])
    await bus.append(SESSION, [said(1, 'turn_1', 'step.completed'), said(1, 'turn_1', 'turn.completed')])
    // A turn of which no event had come yet when the later turn began.
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
      'no event of a turn that is over or whose beginning is unknown is kept',
    )
  })

  t.test(
    'an event of others about a turn belongs to the session before the turn’s first and after its last event',
    async (t) => {
      const bus = await bed.open(t)
      const mine = start(t, bus, { turn: TURN })
      const change = (text: string): BusEvent => ({
        ...event('tools.changed', text),
        alone: event('tools.changed', `${text} alone`, null).data,
      })
      await bus.append(SESSION, [change('early')])
      await bus.append(SESSION, [event('turn.created'), change('within')])
      await bus.append(SESSION, [event('turn.completed'), change('late')])
      const all = eventsOf(await readAll(bus)).map(({ type, turn_id, data }) => [
        type,
        turn_id,
        JSON.parse(data).text,
      ])
      t.same(all, [
        ['tools.changed', null, 'early alone'],
        ['turn.created', TURN, ''],
        ['tools.changed', TURN, 'within'],
        ['turn.completed', TURN, ''],
        ['tools.changed', null, 'late alone'],
      ])
      await mine.ended
      const own = ['turn.created', 'tools.changed', 'turn.completed']
      t.same(
        eventsOf(mine.items).map(({ type }) => type),
        own,
        'live',
      )
      const again = await readAll(bus, { turn: TURN, begun: true })
      t.same(
        eventsOf(again).map(({ type }) => type),
        own,
        'a read from the turn’s first event has no gap',
      )
    },
  )

  t.test('an event with a known key is dropped', async (t) => {
    const bus = await bed.open(t)
    const other = await bed.another(t, bus)
    const keyed = (key: string, text: string): BusEvent => ({ ...delta(text), once: key })
    await bus.append(SESSION, [keyed('a', 'a'), keyed('b', 'b')])
    await other.append(SESSION, [keyed('a', 'again'), delta('c'), keyed('b', 'again')])
    await bus.append(SESSION, [keyed('d', 'd'), keyed('d', 'd again')])
    t.same(textsOf(eventsOf(await readAll(other))), ['a', 'b', 'c', 'd'])
    await bus.append('ses_other', [keyed('a', 'a')])
    t.same(
      textsOf(eventsOf(await readAll(bus, {}, 'ses_other'))),
      ['a'],
      'keys count only within their session',
    )
  })

  t.test(
    'the key of a turn’s event is known until the turn’s end is gone, whether or not the event is kept',
    async (t) => {
      const bus = await bed.open(t, { maxEvents: 20 })
      const told = { ...event('message', 'told'), once: `${TURN}:msg_1`, again: true }
      const others = Array.from({ length: 30 }, (_, i) => delta(i))
      const ofNext = (one: BusEvent): BusEvent => ({ ...one, turn_id: 'turn_2' })
      await bus.append(SESSION, [event('turn.created'), told, ...others])
      await bus.append(SESSION, [told, delta('next')])
      t.same(textsOf(eventsOf(await readAll(bus))).slice(-2), [29, 'next'])
      await bus.append(SESSION, [event('turn.completed', 'end'), ...others.slice(0, 5).map(ofNext)])
      await bus.append(SESSION, [told])
      t.same(textsOf(eventsOf(await readAll(bus))).slice(-6), ['end', 0, 1, 2, 3, 4])
      await bus.append(SESSION, others.map(ofNext))
      await bus.append(SESSION, [{ ...ofNext(told), again: false }])
      t.same(textsOf(eventsOf(await readAll(bus))).at(-1), 'told', 'no memory of it stays')
    },
  )

  t.test('a read after a place that is no longer kept gives a gap and then live events', async (t) => {
    const limits = { maxEvents: 20 }
    const bus = await bed.open(t, limits)
    const cursors: string[] = []
    for (let i = 0; i < 50; i++) cursors.push(...(await appended(bus, SESSION, [delta(i)])))
    for (const [i, after] of cursors.slice(0, -1).entries()) {
      const item = await start(t, bus, { after }).item(0)
      if ('events' in item) t.equal(textsOf(item.events)[0], i + 1, 'the read gives the next event, or a gap')
      else t.match(item, { gap: true })
    }
    for (const after of [cursors[0] ?? '', cursors[20] ?? '']) {
      const reading = start(t, bus, { after })
      const gap = await reading.item(0)
      t.match(gap, { gap: true })
      const [next] = await appended(bus, SESSION, [delta('live')])
      t.same(
        (await reading.events(1)).map(({ cursor }) => cursor),
        [next],
      )
      const resumed = start(t, bus, { after: 'cursor' in gap ? gap.cursor : '' })
      t.same(
        await resumed.events(1),
        await reading.events(1),
        'a read can be resumed at the gap’s own cursor',
      )
    }
    const kept = start(t, bus, { after: cursors[45] ?? '' })
    t.same(textsOf(await kept.events(6)), [46, 47, 48, 49, 'live', 'live'])
    const oldest = eventsOf(await readAll(bus))
    t.ok(oldest.length <= 22 && oldest.length >= 15, `${oldest.length} events are kept`)
    t.same(textsOf(oldest).slice(-3), [49, 'live', 'live'])
  })

  t.test('after a gap the running step is told from its beginning if this is kept', async (t) => {
    const bus = await bed.open(t, { maxEvents: 20 })
    const [lost = ''] = await appended(bus, SESSION, [event('turn.created')])
    const behind = async () => {
      const reading = start(t, bus, { after: lost, turn: TURN })
      const gap = await reading.item(0)
      t.match(gap, { gap: true })
      await bus.append(SESSION, [event('mark', 'live')])
      while (textsOf(eventsOf(reading.items)).at(-1) !== 'live') await reading.item(reading.items.length)
      const told = eventsOf(reading.items)
      const again = start(t, bus, { after: 'cursor' in gap ? gap.cursor : '', turn: TURN })
      t.same(await again.events(told.length), told, 'the gap’s own cursor is the place before these events')
      return textsOf(told)
    }
    for (let i = 0; i < 30; i++) await bus.append(SESSION, [delta(i)])
    t.same(await behind(), ['live'], 'its beginning was never in the log')
    await bus.append(SESSION, [event('step.started', 'begins'), delta('a'), delta('b')])
    t.same(await behind(), ['begins', 'a', 'b', 'live'])
    const atOnce = await start(t, bus, { after: lost, turn: TURN }).events(4)
    t.same(textsOf(atOnce), ['begins', 'a', 'b', 'live'], 'also while nothing more is said')
    await bus.append(SESSION, [event('message', 'whole')])
    t.same(await behind(), ['live'], 'a committed step is in the snapshot, and is not told')
    await bus.append(SESSION, [event('step.started', 'begins')])
    for (let i = 0; i < 30; i++) await bus.append(SESSION, [delta(i)])
    t.same(await behind(), ['live'], 'the step’s beginning is no longer kept')
  })

  t.test('a log is bounded in bytes, too', async (t) => {
    const bus = await bed.open(t, { maxBytes: 100_000 })
    for (let i = 0; i < 30; i++) await bus.append(SESSION, [delta('x'.repeat(10_000))])
    const kept = eventsOf(await readAll(bus))
    t.ok(kept.length >= 5 && kept.length <= 10, `${kept.length} events are kept`)
    const live = start(t, bus)
    const { length } = await live.events(kept.length + 1)
    await bus.append(SESSION, [delta('y'.repeat(200_000))])
    t.equal(
      (await live.events(length + 1)).length,
      length + 1,
      'a live reader gets an event that is larger than the log',
    )
    const gap = await start(t, bus, { after: kept[0]?.cursor ?? '' }).item(0)
    await bus.append(SESSION, [delta('after')])
    const behind = start(t, bus, { after: 'cursor' in gap ? gap.cursor : '' })
    t.same(textsOf(await behind.events(1)), ['after'])
  })

  t.test('a turn’s read gives a gap if its first event is gone, and waits if it has not begun', async (t) => {
    const bus = await bed.open(t, { maxEvents: 20 })
    await bus.append(SESSION, [event('turn.created'), ...Array.from({ length: 40 }, (_, i) => delta(i))])
    t.match(await start(t, bus, { turn: TURN }).item(0), { gap: true })
    const unknown = start(t, bus, { turn: 'turn_new' })
    t.match(await start(t, bus, { turn: 'turn_lost', begun: true }).item(0), { gap: true })
    await bus.append(SESSION, wholeTurn('turn_new', 1))
    t.equal((await unknown.events(3)).length, 3)
    const kept = await start(t, bus, { turn: 'turn_new' }).item(0)
    t.match(kept, { events: [{ type: 'turn.created' }] }, 'what else is gone is none of its events')
    await bus.append(SESSION, [event('turn.failed')])
    const ended = start(t, bus, { turn: TURN })
    await ended.ended
    t.match(ended.items, [{ gap: true }], 'nothing follows the gap of an ended turn')
    await bus.append(SESSION, [delta('first known', 'turn_half')])
    t.match(
      await start(t, bus, { turn: 'turn_half' }).item(0),
      { gap: true },
      'its beginning was never in the log',
    )
  })

  t.test('after a loss every old cursor gives a gap, and no old key is known', async (t) => {
    const bus = await bed.open(t)
    const cursors = await appended(bus, SESSION, wholeTurn(TURN, 3))
    await bus.append(SESSION, [{ ...delta('once'), once: 'key' }])
    // Cursors are ordered by milliseconds, and no real loss is over within one.
    await sleep(2)
    const after = await bed.lose(t, bus)
    t.equal(await after.pastEnd(SESSION, TURN, cursors[4] ?? '', true), false, 'before another log has begun')
    const empty = start(t, after, { after: cursors[1] ?? '' })
    t.match(await empty.item(0), { gap: true })
    const [again] = await appended(after, SESSION, [{ ...delta('once'), once: 'key' }])
    t.same(textsOf(await empty.events(1)), ['once'])
    t.ok(ascends([...cursors, again ?? '']), 'cursors stay ordered')
    // The new log is as long as the old one: the old numbers are there again, for other events.
    await after.append(SESSION, wholeTurn(TURN, 9))
    t.match(
      await start(t, after, { after: cursors[1] ?? '' }).item(0),
      { gap: true },
      'an old cursor gives a gap in the new log, too',
    )
    for (const turn of [TURN, 'turn_lost'])
      t.equal(await after.pastEnd(SESSION, turn, cursors[4] ?? '', true), false)
  })

  t.test('pastEnd is true for the cursors of the terminal event and later ones only', async (t) => {
    const bus = await bed.open(t)
    const cursors = await appended(bus, SESSION, [...wholeTurn(TURN, 2), event('tools.changed', '', null)])
    const answers = await Promise.all(cursors.map((cursor) => bus.pastEnd(SESSION, TURN, cursor, true)))
    t.same(answers, [false, false, false, true, true])
    t.equal(await bus.pastEnd(SESSION, 'turn_unknown', cursors[4] ?? '', false), false)
  })

  t.test('pastEnd is true for a kept place after the end of a turn that the log has forgotten', async (t) => {
    const bus = await bed.open(t, { maxEvents: 20 })
    const [begin = ''] = await appended(bus, SESSION, wholeTurn(TURN, 2))
    await bus.append(SESSION, [event('turn.created', '', 'turn_2')])
    const many = Array.from({ length: 40 }, (_, i) => delta(i, 'turn_2'))
    const [kept = ''] = (await appended(bus, SESSION, many)).slice(-1)
    t.equal(await bus.pastEnd(SESSION, TURN, kept, true), true)
    t.equal(
      await bus.pastEnd(SESSION, TURN, kept, false),
      false,
      'a turn that has not ended may still begin here',
    )
    t.equal(
      await bus.pastEnd(SESSION, TURN, begin, true),
      false,
      'a place before the kept events gives a gap',
    )
    t.equal(await bus.pastEnd(SESSION, 'turn_2', kept, true), false, 'the turn’s end is not in the log yet')
    const ahead = kept.replace(/^\d+/, (ms) => String(Number(ms) + 1_000_000))
    t.equal(await bus.pastEnd(SESSION, TURN, ahead, true), false, 'a place beyond the log’s end was lost')
  })

  t.test('an invalid cursor, or one of another session, is refused', async (t) => {
    const bus = await bed.open(t)
    const [cursor = ''] = await appended(bus, SESSION, [delta(1)])
    const { signal } = new AbortController()
    for (const after of ['', 'x', '1-0', `${cursor}0`, cursor.toUpperCase().replace('-', '_'), '0']) {
      t.throws(() => bus.read(SESSION, { after, signal }), { code: 'invalid_cursor', status: 400 }, after)
      await t.rejects(bus.pastEnd(SESSION, TURN, after, false), { code: 'invalid_cursor' })
    }
    t.throws(() => bus.read('ses_other', { after: cursor, signal }), { code: 'invalid_cursor' })
    await t.rejects(bus.pastEnd('ses_other', TURN, cursor, false), { code: 'invalid_cursor' })
    for (const number of [/^\d+/, /(?<=-)\d+/]) {
      const ahead = cursor.replace(number, (digits) => String(Number(digits) + 1_000_000))
      t.match(
        await start(t, bus, { after: ahead }).item(0),
        { gap: true },
        'a cursor beyond the log’s end gives a gap',
      )
    }
  })
}
