/** A Redis that is away, cut off or silent, and the events that were said meanwhile. */
import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { createLog } from '../../src/log.ts'
import { appended, bytes, delta, event, SESSION, start, TURN, textsOf } from '../contracts/bus-bed.ts'
import { ON_REDIS } from '../given-servers.ts'
import { eventually } from '../waiting.ts'
import { proxied } from './proxied.ts'
import { isReady, redisBeds } from './redis-bed.ts'

const { command, databaseOf, freshUrl, openAt } = redisBeds([14, 15])

/** Two replicas' buses on one Redis, of which only the first goes through the proxy. */
async function replicas(t: Test) {
  const proxy = await proxied(t, await freshUrl())
  const [bus, other] = [await openAt(t, { url: proxy.url }), await openAt(t, { url: proxy.direct })]
  return { proxy, bus, other }
}

t.test('a Redis that is away for a while', ON_REDIS, async (t) => {
  t.test('over short cuts appends take effect once and in order, and readers miss nothing', async (t) => {
    const { proxy, bus, other } = await replicas(t)
    const reading = start(t, bus)
    await bus.append(SESSION, [delta(0)])
    await reading.events(1)
    for (let i = 1; i < 20; i++) {
      if (i % 6 === 0) proxy.cut()
      const said = [bus.append(SESSION, [delta(i)]), other.append(SESSION, [delta(`other ${i}`)])]
      proxy.restore()
      await Promise.all(said)
    }
    const all = await reading.events(39)
    t.notOk(reading.items.some((item) => 'gap' in item))
    t.equal(bytes(all), bytes(await start(t, other).events(39)))
    const own = all.map(({ data }) => JSON.parse(data).text).filter((text) => typeof text === 'number')
    t.same(
      own,
      Array.from({ length: 20 }, (_, i) => i),
    )
    proxy.cut()
    await other.append(SESSION, [delta('the last')])
    proxy.restore()
    t.equal(
      (await reading.events(40)).length,
      40,
      'also the last event, after which no other shows that it is missing',
    )
  })

  t.test('a reader that hears of a new log before it noticed the break gets a gap', async (t) => {
    const { proxy, bus, other } = await replicas(t)
    const reading = start(t, bus)
    await other.append(SESSION, [delta('first')])
    await reading.events(1)
    proxy.cut()
    await other.append(SESSION, [delta('missed')])
    await command(t, other, 'FLUSHDB')
    const kept = proxy.keepBack('$9\r\nsubscribe', 'after')
    proxy.restore()
    await kept
    await other.append(SESSION, [delta('after')])
    t.match(await reading.item(1), { gap: true })
  })

  t.test('a message to all replicas is heard before the channels of readers are open again', async (t) => {
    const { proxy, bus, other } = await replicas(t)
    const heard: string[] = []
    bus.subscribe('control', (message) => heard.push(message))
    const reading = start(t, bus)
    await other.append(SESSION, [delta('first')])
    await reading.events(1)
    proxy.cut()
    const kept = proxy.keepBack('$9\r\nsubscribe', 'said early')
    proxy.restore()
    await kept
    await other.publish('control', 'said early')
    await other.append(SESSION, [delta('after')])
    await reading.events(2)
    t.same(heard, ['said early'])
  })

  t.test('reads of a session that is deleted while Redis is away end once Redis is back', async (t) => {
    const { proxy, bus, other } = await replicas(t)
    const reading = start(t, other)
    await bus.append(SESSION, [delta('first')])
    await reading.events(1)
    proxy.cut()
    await t.rejects(bus.drop(SESSION), { code: 'unavailable' })
    proxy.restore()
    await reading.ended
    t.equal(reading.items.length, 1)
  })

  t.test('an event that arrives after its log was lost is not told to readers of the next log', async (t) => {
    const { proxy, bus, other } = await replicas(t)
    await other.append(SESSION, [delta('first')])
    await start(t, bus).events(1)
    await command(t, other, 'FLUSHDB')
    const kept = proxy.keepBack('old', 'last')
    await other.append(SESSION, [delta('old')])
    await kept
    await command(t, other, 'FLUSHDB')
    await other.append(SESSION, [delta('new')])
    const reading = start(t, bus)
    await reading.events(1)
    await other.append(SESSION, [delta('last')])
    t.same(
      (await reading.events(2)).map(({ data }) => JSON.parse(data).text),
      ['new', 'last'],
    )
  })

  t.test('an append whose answer is lost takes effect once', async (t) => {
    const { proxy, bus, other } = await replicas(t)
    await bus.append(SESSION, [delta('first')])
    proxy.loseNextAnswer()
    await bus.append(SESSION, [delta('a'), delta('b')])
    await bus.append(SESSION, [delta('last')])
    const all = await start(t, other).events(4)
    t.same(
      all.map(({ data }) => JSON.parse(data).text),
      ['first', 'a', 'b', 'last'],
    )
    t.ok(proxy.lost(), 'an answer was lost')
  })

  t.test('an append that arrives after its repetition and later appends takes effect once', async (t) => {
    const { proxy, bus, other } = await replicas(t)
    await bus.append(SESSION, [delta('first')])
    proxy.delayNext('delayed')
    await bus.append(SESSION, [delta('delayed')])
    await bus.append(SESSION, [delta('later')])
    await proxy.deliverDelayed()
    await other.append(SESSION, [delta('last')])
    t.same(textsOf(await start(t, other).events(4)), ['first', 'delayed', 'later', 'last'])
  })

  t.test('a reader from now on that finds no Redis for a moment misses nothing said since', async (t) => {
    const { proxy, bus, other } = await replicas(t)
    await other.append(SESSION, [delta('before')])
    const after = await bus.present(SESSION)
    proxy.cut()
    const reading = start(t, bus, { after })
    await sleep(50)
    await other.append(SESSION, [delta('since')])
    proxy.restore()
    await eventually(async () => {
      await other.append(SESSION, [delta('next')])
      return reading.items.length > 0
    })
    t.same(textsOf(await reading.events(2)).slice(0, 2), ['since', 'next'])
    t.notOk(reading.items.some((item) => 'gap' in item))
  })

  t.test('events that are said again, since their log was lost before the answer, are a gap', async (t) => {
    const { proxy, bus, other } = await replicas(t)
    const reading = start(t, other)
    await bus.append(SESSION, [delta('first')])
    await reading.events(1)
    proxy.loseNextAnswer()
    const said = bus.append(SESSION, [delta('twice')])
    await reading.events(2)
    proxy.cut()
    t.ok(proxy.lost())
    await command(t, other, 'FLUSHDB')
    proxy.restore()
    await said
    t.match(await reading.item(2), { gap: true })
  })

  t.test('events that the dead owner may have said, and the new owner repeats, are a gap', async (t) => {
    const bus = await openAt(t, { url: await freshUrl() })
    const reading = start(t, bus)
    await bus.append(SESSION, [delta('said')])
    await reading.events(1)
    await command(t, bus, 'FLUSHDB')
    await bus.append(SESSION, [{ ...delta('said'), again: true }])
    t.match(await reading.item(1), { gap: true })
    await bus.append(SESSION, [{ ...delta('next'), again: true }])
    t.match(await reading.item(2), { events: [{ data: /next/ }] })
  })

  t.test('a repeated event is a gap also for a reader that already stands behind a gap', async (t) => {
    const bus = await openAt(t, { url: await freshUrl() })
    const [cursor = ''] = await appended(bus, SESSION, [delta('said')])
    await command(t, bus, 'FLUSHDB')
    const reading = start(t, bus, { after: cursor })
    t.match(await reading.item(0), { gap: true })
    await bus.append(SESSION, [{ ...delta('said'), again: true }])
    t.match(await reading.item(1), { gap: true })
  })

  t.test('a repeated event is a gap, also where another event of the session began the log', async (t) => {
    const word = (name: string) => ({ ...event('message', name), once: name, again: true })
    for (const other of [delta('goes on'), event('turn.created', '', 'turn_next')]) {
      const bus = await openAt(t, { url: await freshUrl() })
      const reading = start(t, bus)
      await bus.append(SESSION, [event('turn.created'), { ...word('said'), again: false }])
      await bus.append(SESSION, [word('said'), word('more')])
      await reading.events(3)
      await command(t, bus, 'FLUSHDB')
      await bus.append(SESSION, [other])
      t.equal((await reading.events(4)).length, 4, 'a reader that stayed has heard all events')
      const { length } = reading.items
      await bus.append(SESSION, [word('said')])
      t.match(await reading.item(length), { gap: true })
      await bus.append(SESSION, [word('new')])
      t.match(await reading.item(length + 1), { events: [{ data: /new/ }] }, 'the gap is told once')
    }
  })

  t.test('a turn whose first owner died before its first event costs no reader a gap', async (t) => {
    const bus = await openAt(t, { url: await freshUrl() })
    const reading = start(t, bus)
    await bus.append(SESSION, [delta('another', 'turn_before')])
    const words = ['turn.created', 'turn.started', 'message']
    await bus.append(
      SESSION,
      words.map((type) => ({ ...event(type), once: type, again: true })),
    )
    t.equal((await reading.events(4)).length, 4)
  })

  t.test('a reader that leaves while its first page is on the way hears nothing of it', async (t) => {
    const { proxy, bus, other } = await replicas(t)
    await other.append(SESSION, [delta('said')])
    const kept = proxy.keepBack('said', 'last')
    const leaving = new AbortController()
    const reading = start(t, bus, { signal: leaving.signal })
    await kept
    leaving.abort()
    await other.append(SESSION, [delta('last')])
    await start(t, bus).events(2)
    await reading.ended
    t.same(reading.items, [])
  })

  t.test('while Redis is away appends fail in time, then at once; readers get a gap later', async (t) => {
    const proxy = await proxied(t, await freshUrl())
    const counted = { appended: 0, lost: 0 }
    const metrics = {
      eventsAppended(count: number) {
        counted.appended += count
      },
      eventsLost(count: number) {
        counted.lost += count
      },
    }
    const lines: string[] = []
    const log = createLog('info', { write: (line) => void lines.push(JSON.parse(line).msg) })
    const bus = await openAt(t, { url: proxy.url, metrics, log })
    const reading = start(t, bus)
    const [cursor = ''] = await appended(bus, SESSION, [delta('before')])
    await reading.events(1)
    const heard: string[] = []
    bus.subscribe('control', (message) => heard.push(message))
    proxy.cut()
    await t.rejects(bus.append(SESSION, [delta('lost'), delta('lost')]), {
      code: 'unavailable',
      status: 503,
    })
    const began = performance.now()
    for (let i = 0; i < 20; i++)
      await t.rejects(bus.append(SESSION, [delta('lost')]), { code: 'unavailable' })
    t.ok(performance.now() - began < 2000, 'not each append waits the full time')
    await t.rejects(bus.ready(), { code: 'unavailable' })
    await t.rejects(bus.tally('count', 60), { code: 'unavailable' })
    await bus.publish('control', 'to itself at least')
    t.same(heard, ['to itself at least'])
    t.same(counted, { appended: 1, lost: 22 })
    proxy.restore()
    t.match(await reading.item(1), { gap: true }, 'the gap comes without a further append')
    await bus.ready()
    await bus.append(SESSION, [delta('after')])
    t.same(
      (await reading.events(2)).map(({ data }) => JSON.parse(data).text),
      ['before', 'after'],
    )
    t.match(await start(t, bus, { after: cursor }).item(0), { gap: true })
    await eventually(() => lines.length === 2)
    t.same(lines, ['Redis is away', 'Redis is back'], 'the log has one line for each change')
  })

  t.test('readers that come while Redis is away wait for it, and miss nothing', async (t) => {
    const { proxy, bus } = await replicas(t)
    const [cursor = ''] = await appended(bus, SESSION, [delta('before')])
    proxy.cut()
    await t.rejects(bus.append('ses_lost', [delta('lost')]), { code: 'unavailable' })
    const whole = start(t, bus, { after: await bus.oldest(SESSION) })
    const resumed = start(t, bus, { after: cursor })
    const live = start(t, bus, { after: await bus.present(SESSION) })
    const unheard = start(t, bus, { after: await bus.present('ses_lost') }, 'ses_lost')
    const fresh = start(t, bus, { turn: 'turn_new', begun: false }, 'ses_lost')
    t.equal(
      await bus.pastEnd(SESSION, TURN, cursor, true),
      false,
      'nobody knows whether anything follows: a reader that comes back waits, too',
    )
    const leaving = new AbortController()
    const gone = start(t, bus, { signal: leaving.signal }, 'ses_other')
    await sleep(700)
    leaving.abort()
    await gone.ended
    proxy.restore()
    for (const reading of [live, unheard, fresh]) {
      t.match(await reading.item(0), { gap: true }, 'nobody knows what was said since they came')
    }
    await bus.append(SESSION, [delta('after')])
    const texts = (events: { data: string }[]) => events.map(({ data }) => JSON.parse(data).text)
    t.same(texts(await whole.events(2)), ['before', 'after'])
    t.same(texts(await resumed.events(1)), ['after'])
    t.same(texts(await live.events(1)), ['after'])
    for (const reading of [whole, resumed]) t.notOk(reading.items.some((item) => 'gap' in item))
    const later = start(t, bus, {}, 'ses_other')
    await bus.append('ses_other', [delta('other')])
    t.same(texts(await later.events(1)), ['other'], 'a session that a reader waited for can be read again')
  })

  t.test('a reader that waited ten seconds for its first event may try another replica', async (t) => {
    const { proxy, bus } = await replicas(t)
    proxy.cut()
    const reading = start(t, bus)
    const real = performance.now.bind(performance)
    const { mock: late } = mock.method(performance, 'now', () => real() + 10_000)
    t.teardown(() => late.restore())
    await t.rejects(reading.ended, { code: 'unavailable' })
  })

  t.test('a connection that falls silent is given up', async (t) => {
    const { proxy, bus } = await replicas(t)
    await bus.append(SESSION, [delta(1)])
    proxy.freeze()
    await t.rejects(bus.append(SESSION, [delta(2)]), { code: 'unavailable' })
    proxy.restore()
    await eventually(() =>
      bus.append(SESSION, [delta(3)]).then(
        () => true,
        () => false,
      ),
    )
    t.pass('and a new one is made')
  })

  t.test('what is cut off is told with the reason, not with an option of the driver', async (t) => {
    const lines: object[] = []
    const log = createLog('info', { write: (line) => void lines.push(JSON.parse(line)) })
    const proxy = await proxied(t, await freshUrl())
    const bus = await openAt(t, { url: proxy.url, log })
    proxy.freeze()
    t.equal(await bus.slots('all', 1).enter({ id: '1', tool: 'read', most: 1 }, 0), 'in')
    const reason = /^Socket timeout/
    t.match(lines, [
      { msg: 'Redis is away', reason },
      { msg: 'limits of tools are counted by each replica alone', reason },
    ])
  })

  t.test('a reader hears on after the connection that it listened on fell silent', async (t) => {
    mock.timers.enable({ apis: ['setInterval'] })
    t.teardown(() => mock.timers.reset())
    const { proxy, bus, other } = await replicas(t)
    const reading = start(t, bus)
    await other.append(SESSION, [delta(1)])
    await reading.events(1)
    proxy.hush()
    await other.append(SESSION, [delta(2)])
    mock.timers.tick(5_000)
    t.equal((await reading.events(2)).length, 2)
  })

  t.test(
    'a reader asks again when commands alone had lost Redis: they may have reached another server',
    async (t) => {
      const bus = await openAt(t, { url: await freshUrl() })
      const reading = start(t, bus)
      await bus.append(SESSION, [delta('before')])
      await reading.events(1)
      await command(t, bus, 'FLUSHDB')
      const clients = String(await command(t, bus, 'CLIENT', 'LIST')).split('\n')
      const commands = ['name=baton', `db=${databaseOf(bus)}`, 'sub=0']
      const mine = clients.find((line) => commands.every((word) => line.includes(` ${word} `))) ?? ''
      await command(t, bus, 'CLIENT', 'KILL', 'ID', /^id=(\d+)/.exec(mine)?.[1] ?? '')
      t.match(await reading.item(1), { gap: true })
    },
  )

  t.test('Baton starts without Redis and finds it later', async (t) => {
    const proxy = await proxied(t, await freshUrl())
    proxy.cut()
    const bus = await openAt(t, { url: proxy.url })
    await t.rejects(bus.ready(), { code: 'unavailable' })
    proxy.restore()
    await eventually(() => isReady(bus))
    await bus.append(SESSION, [delta(1)])
    t.equal((await start(t, bus).events(1)).length, 1)
  })
})
