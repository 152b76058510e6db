/** Logs in Redis: flushed, evicted, expired, refused; and the channels of their readers. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { compareIds, formatCursor, parseCursor, sessionTag } from '../../src/bus/cursor.ts'
import { appended, delta, event, SESSION, start, TURN } from '../contracts/bus-bed.ts'
import { ON_REDIS } from '../given-servers.ts'
import { eventually } from '../waiting.ts'
import { redisBeds } from './redis-bed.ts'

const idOf = (cursor: string) => parseCursor(cursor, SESSION).id
const { channelsOf, clientOf, command, databaseOf, freshUrl, openAt, redis } = redisBeds([12, 13])
const many = (count: number, prefix: string) => Array.from({ length: count }, (_, i) => delta(prefix + i))

t.test('logs in Redis', ON_REDIS, async (t) => {
  t.test('a reader gets a gap, not silence, when Redis is flushed in the middle of its replay', async (t) => {
    const bus = await redis.open(t)
    for (let i = 0; i < 30; i++) await bus.append(SESSION, many(40, `${i}.`))
    const abort = new AbortController()
    t.teardown(() => abort.abort())
    const options = { after: 'start', signal: abort.signal }
    const reading = bus.read(SESSION, options)[Symbol.asyncIterator]()
    const first = await reading.next()
    t.ok('events' in first.value && first.value.events.length < 1200, 'one page of several')
    await redis.lose(t, bus)
    t.match((await reading.next()).value, { gap: true })
    const next = reading.next()
    await bus.append(SESSION, [delta('after')])
    t.match((await next).value, { events: [{ data: delta('after').data }] })
  })

  t.test('a reader that comes while its turn’s first event is being said gets no gap', async (t) => {
    const bus = await redis.open(t)
    const reading = start(t, bus, { turn: TURN, begun: true, isYoung: true })
    await sleep(400)
    await bus.append(SESSION, [event('turn.created'), delta(1)])
    t.strictSame(
      (await reading.events(2)).map(({ type }) => type),
      ['turn.created', 'content.delta'],
    )
    t.match(reading.items[0], { events: [{ type: 'turn.created' }] })
  })

  t.test('live readers miss no event when Redis is flushed', async (t) => {
    const bus = await redis.open(t)
    const reading = start(t, bus)
    const [before = ''] = await appended(bus, SESSION, [event('turn.created'), delta(1)])
    await reading.events(2)
    await redis.lose(t, bus)
    await bus.append(SESSION, [delta(2)])
    await bus.append(SESSION, [delta(3)])
    const all = await reading.events(4)
    t.same(
      all.map(({ data }) => JSON.parse(data).text),
      ['', 1, 2, 3],
    )
    t.equal(
      reading.items.some((item) => 'gap' in item),
      false,
    )
    t.match(
      await start(t, bus, { after: before }).item(0),
      { gap: true },
      'a reader that comes back cannot know that it missed nothing',
    )
    t.match(
      await start(t, bus, { turn: TURN }).item(0),
      { gap: true },
      'the new log lacks the turn’s beginning',
    )
  })

  t.test('a log that lost either of its two keys to eviction is a gap', async (t) => {
    for (const part of ['log', 'meta']) {
      const bus = await redis.open(t)
      const [cursor = ''] = await appended(bus, SESSION, [delta(1), delta(2)])
      await command(t, bus, 'DEL', `baton:{${SESSION}}:${part}`)
      t.match(await start(t, bus, { after: cursor }).item(0), { gap: true }, part)
      await bus.append(SESSION, [delta(3)])
      const kept = await start(t, bus).events(1)
      t.same(
        kept.map(({ data }) => JSON.parse(data).text),
        [3],
      )
    }
  })

  t.test('the gap of a log that begins anew lies behind every event of the log before', async (t) => {
    const bus = await redis.open(t)
    const isBehind = async (cursor: string) => {
      const gap = await start(t, bus, { after: cursor }).item(0)
      const [next = ''] = await appended(bus, SESSION, [delta('next')])
      t.match(gap, { gap: true })
      const [before, at, after] = [cursor, 'gap' in gap ? gap.cursor : '', next].map(idOf)
      return compareIds(before ?? '', at ?? '') <= 0 && compareIds(at ?? '', after ?? '') < 0
    }
    const client = clientOf(t, bus)
    const [meta = '', log = ''] = ['meta', 'log'].map((part) => `baton:{${SESSION}}:${part}`)
    // Often enough that a log is lost within the millisecond of its last event.
    for (let i = 0; i < 100; i++) {
      await bus.append(SESSION, [delta(1)])
      const stood = await client.multi().hmget(meta, 'gen', 'last').flushdb().exec()
      const [generation = '', id = ''] = (stood?.[0]?.[1] ?? []) as string[]
      const cursor = formatCursor(sessionTag(SESSION), { generation, id })
      if (!(await isBehind(cursor))) return t.fail(`the gap is not behind the event of round ${i}`)
    }
    await client.hset(meta, 'last', `${Date.now() + 60_000}-0`)
    const [ahead = ''] = await appended(bus, SESSION, [delta(1)])
    await client.del(log)
    t.ok(await isBehind(ahead), 'also where the clock of the lost log was ahead')
  })

  t.test('both keys of a log expire, and the memory of a trimmed log is trimmed, too', async (t) => {
    const bus = await redis.open(t, { maxEvents: 20, idleMs: 60_000 })
    for (let i = 0; i < 100; i++) {
      const turn = `turn_${i}`
      await bus.append(SESSION, [
        { ...event('turn.created', '', turn), once: `${turn}:created`, epoch: i },
        { ...event('turn.completed', '', turn), once: `${turn}:end`, epoch: i },
      ])
    }
    const left = async (part: string, session = SESSION) =>
      Number(await command(t, bus, 'PTTL', `baton:{${session}}:${part}`))
    for (const part of ['log', 'meta']) {
      const ttl = await left(part)
      t.ok(ttl > 0 && ttl <= 60_000, `${part} has ${ttl} ms`)
    }
    t.ok(Number(await command(t, bus, 'HLEN', `baton:{${SESSION}}:meta`)) < 80)
    t.ok(Number(await command(t, bus, 'XLEN', `baton:{${SESSION}}:log`)) <= 20)
    const reading = start(t, bus, { turn: 'turn_99' })
    await reading.ended
    t.equal(reading.items.length, 1)
    await command(t, bus, 'HSET', `baton:{${SESSION}}:meta`, 'touched', '0')
    for (const part of ['log', 'meta']) await command(t, bus, 'PEXPIRE', `baton:{${SESSION}}:${part}`, '9000')
    await bus.append(SESSION, [delta(1)])
    for (const part of ['log', 'meta']) t.ok((await left(part)) > 9000, 'a log that is used expires later')
    await bus.ready()
    await start(t, bus, { turn: TURN, begun: true }, 'ses_read').item(0)
    t.ok((await left('meta', 'ses_read')) > 0, 'a log that was only read expires, too')
    await bus.append('ses_marked', [])
    t.ok((await left('meta', 'ses_marked')) > 0, 'a log that was only marked expires, too')
    await bus.append('ses_marked', [delta(1)])
    t.ok((await left('log', 'ses_marked')) > 0, 'its events expire from the first one on')
    await command(t, bus, 'DEL', 'baton:{ses_marked}:log')
    await bus.append('ses_marked', [delta(2)])
    t.ok((await left('log', 'ses_marked')) > 0, 'also where the log was lost and begins anew')
  })

  t.test(
    'an event that is said again is no sign of a loss where its log was trimmed or remembers the event',
    async (t) => {
      const trimmed = await redis.open(t, { maxEvents: 20 })
      await trimmed.append(SESSION, [event('turn.created')])
      await trimmed.append(SESSION, many(30, ''))
      const word = { ...event('message', 'word'), once: 'word' }
      const known = await redis.open(t)
      await known.append(SESSION, [word])
      for (const bus of [trimmed, known]) {
        const [after = ''] = await appended(bus, SESSION, [delta('last')])
        const reading = start(t, bus, { after })
        await bus.append(SESSION, [{ ...word, again: true }])
        await bus.append(SESSION, [delta('next')])
        const texts = (await reading.events(bus === known ? 1 : 2)).map(({ data }) => JSON.parse(data).text)
        t.same(texts, bus === known ? ['next'] : ['word', 'next'])
      }
    },
  )

  t.test('readers get a gap where a turn that a trimmed log has forgotten is said again', async (t) => {
    const bus = await redis.open(t, { maxEvents: 20 })
    const ended = { ...event('turn.completed'), once: `${TURN}:end` }
    await bus.append(SESSION, [event('turn.created'), ended, event('turn.created', '', 'turn_2')])
    const others = Array.from({ length: 30 }, (_, i) => delta(i, 'turn_2'))
    const [after = ''] = (await appended(bus, SESSION, others)).slice(-1)
    const reading = start(t, bus, { after })
    await bus.append(SESSION, [{ ...ended, again: true }])
    t.match(await reading.item(0), { gap: true })
  })

  t.test('behind a gap no step is told whose end a replica of a former version may have said', async (t) => {
    const bus = await redis.open(t)
    const [lost = ''] = await appended(bus, SESSION, [event('turn.created')])
    await command(t, bus, 'FLUSHDB')
    const [, cursor = ''] = await appended(bus, SESSION, [event('step.started'), delta('a')])
    // The former version appends so: it takes no notice of `step`.
    const id = idOf(cursor).replace(/\d+$/, (n) => String(Number(n) + 1))
    const key = `baton:{${SESSION}}`
    await command(t, bus, 'XADD', `${key}:log`, id, 'e', 'message', 't', TURN, 'd', '{"text":"committed"}')
    await command(t, bus, 'HSET', `${key}:meta`, 'last', id, 'added', '3', 'kept', '3')
    const reading = start(t, bus, { after: lost, turn: TURN })
    t.match(await reading.item(0), { gap: true })
    await bus.append(SESSION, [delta('live')])
    t.match(await reading.item(1), { events: [{ data: delta('live').data }] })
    await bus.append(SESSION, [event('step.started', 'next')])
    const told = await start(t, bus, { after: lost, turn: TURN }).events(1)
    t.match(told, [{ data: event('step.started', 'next').data }], 'the next step is noted again')
  })

  t.test('readers get a gap where another replica lost events and could not mark the loss', async (t) => {
    const bus = await redis.open(t)
    await bus.append(SESSION, [event('turn.created'), event('step.started'), delta('a')])
    const reading = start(t, bus, { turn: TURN })
    await reading.events(3)
    await bus.append(SESSION, [{ ...event('message'), again: true, lost: true }])
    t.match(await reading.item(reading.items.length), { gap: true })
  })

  t.test('appends to other sessions succeed while Redis refuses those to one session', async (t) => {
    const bus = await redis.open(t)
    await bus.append(SESSION, [delta(1)])
    await command(t, bus, 'SET', `baton:{${SESSION}}:log`, 'something else')
    const refused = bus.append(SESSION, [delta(2)])
    await bus.append('ses_other', [delta(2)])
    await t.rejects(refused, { code: 'unavailable' })
  })

  t.test('a Redis that forgot the scripts is given them again', async (t) => {
    const bus = await redis.open(t)
    await bus.append(SESSION, [delta(1)])
    await command(t, bus, 'SCRIPT', 'FLUSH')
    await bus.append(SESSION, [delta(2)])
    t.equal((await start(t, bus).events(2)).length, 2)
  })

  t.test('all readers of a bus share its two connections', async (t) => {
    const bus = await openAt(t, { url: await freshUrl(), lingerMs: 0 })
    const readings = Array.from({ length: 200 }, (_, i) => start(t, bus, {}, `ses_${i % 100}`))
    await bus.append('ses_99', [delta(1)])
    await Promise.all([readings[99]?.events(1), readings[199]?.events(1)])
    const clients = String(await command(t, bus, 'CLIENT', 'LIST'))
    const mine = clients
      .split('\n')
      .filter((line) => / name=baton /.test(line) && line.includes(` db=${databaseOf(bus)} `))
    t.equal(mine.length, 2)
    for (const reading of readings) await reading.stop()
    await sleep(50)
    t.same(await channelsOf(t, bus), [], 'readers leave no channel behind')
    const topics = `baton:${databaseOf(bus)}:topic:*`
    const listens = async () => ((await command(t, bus, 'PUBSUB', 'CHANNELS', topics)) as string[]).length
    bus.subscribe('queue', () => {})
    await eventually(listens)
    for (const line of mine) await command(t, bus, 'CLIENT', 'KILL', 'ID', /^id=(\d+)/.exec(line)?.[1] ?? '')
    await eventually(async () => (await listens()) === 0)
    await eventually(listens)
    t.same(await channelsOf(t, bus), [], 'nor does a new connection open their channels again')
  })

  t.test(
    'a reader finds the channel of the reader before still open, and misses no event in between',
    async (t) => {
      const bus = await redis.open(t)
      const first = start(t, bus)
      await bus.append(SESSION, [delta(1)])
      const [one] = await first.events(1)
      await first.stop()
      t.equal((await channelsOf(t, bus)).length, 1, 'the channel is still open')
      await bus.append(SESSION, [delta(2)])
      const next = start(t, bus, { after: one?.cursor ?? '' })
      await bus.append(SESSION, [delta(3)])
      t.same(
        (await next.events(2)).map(({ data }) => JSON.parse(data).text),
        [2, 3],
      )
    },
  )

  t.test('a channel that was about to be left stays open for a reader that comes', async (t) => {
    const bus = await openAt(t, { url: await freshUrl(), lingerMs: 1 })
    const first = start(t, bus)
    await bus.append(SESSION, [delta(1)])
    await first.events(1)
    await first.stop()
    const next = start(t, bus)
    await next.events(1)
    // Longer than the channel lingers.
    await sleep(5)
    await bus.append(SESSION, [delta(2)])
    t.equal((await next.events(2)).length, 2)
  })
})
