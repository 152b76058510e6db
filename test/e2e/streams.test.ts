/** Event streams from the outside (api.md section 6): resuming, filtering, gaps, and that nothing is lost. */
import t, { type Test } from 'tap'
import { NONE } from '../patterns.ts'
import { eventually, gate } from '../waiting.ts'
import { type Frame, ofType, typesOf } from './client.ts'
import { everyBackend, PROVIDERS, pathsIn, type World } from './harness.ts'
import { textResult } from './tool-server.ts'

const rawOf = (frames: readonly Frame[]) => frames.map(({ raw }) => raw)
const SCRIPT =
  'think\nsay wait for it\nslow 6 1\ncall kit__echo with {"text": "first"}\ncall kit__echo with {"text": "second"}'

async function resuming(t: Test, world: World) {
  const { api } = world
  for (const path of pathsIn(world, PROVIDERS)) {
    await t.test(`a reader that resumes after any event gets the rest byte for byte: ${path}`, async (t) => {
      const session = await world.session(path, { connectors: ['kit'] })
      const live = await api.turn(session, SCRIPT)
      const { turn } = live
      const frames = await live.done
      const whole = rawOf(frames)
      for (const [i, { id }] of frames.entries()) {
        const isLast = i === frames.length - 1
        const again =
          i % 2 === 0
            ? await api.follow(`/v1/turns/${turn}/events`, { 'last-event-id': id })
            : await api.follow(`/v1/turns/${turn}/events?after=${encodeURIComponent(id)}`)
        if (isLast) t.equal(again.status, 204, 'after the terminal event there is nothing')
        else t.strictSame(rawOf(await again.done), whole.slice(i + 1))
      }
      const fromStart = await api.follow(`/v1/turns/${turn}/events`)
      t.strictSame(
        rawOf(await fromStart.done),
        whole,
        'without a cursor the stream starts at its first event',
      )
      assertWhole(t, frames)
    })
  }

  await t.test('the header wins over the query; a cursor before the turn brings all of it', async (t) => {
    const session = await world.session('openai key')
    const one = await (await api.turn(session, 'one')).done
    const two = await api.turn(session, 'two')
    const { turn } = two
    const frames = await two.done
    const both = await api.follow(`/v1/turns/${turn}/events?after=${frames.at(-1)?.id}`, {
      'last-event-id': frames[1]?.id ?? '',
    })
    t.strictSame(rawOf(await both.done), rawOf(frames.slice(2)))
    const before = await api.follow(`/v1/turns/${turn}/events?after=${one[0]?.id}`)
    t.strictSame(rawOf(await before.done), rawOf(frames))
    const past = await api.follow(`/v1/turns/${one[0]?.data.turn_id}/events?after=${frames[0]?.id}`)
    t.equal(past.status, 204, 'a place after the end of an earlier turn')
  })

  await t.test(
    'late readers of a running turn get its past events, then the new ones, and all readers see the same',
    async (t) => {
      const session = await world.session('gemini key', { connectors: ['kit'] })
      const { opened, open } = gate()
      world.script(async (_, { step }) => {
        if (step > 0) await opened
        return null
      })
      const first = await api.turn(session, SCRIPT)
      const path = `/v1/turns/${first.turn}/events`
      await first.until(() => ofType(first.frames, 'step.started').length === 2)
      const seen = first.frames.length
      const fromStart = await api.follow(path)
      const fromThird = await api.follow(`${path}?after=${first.frames[2]?.id}`)
      const fromNow = await api.follow(`${path}?after=${first.frames[seen - 1]?.id}`)
      await fromStart.until(() => fromStart.frames.length === seen)
      first.leave()
      open()
      const whole = rawOf(await fromStart.done)
      t.strictSame(rawOf(await fromThird.done), whole.slice(3))
      t.strictSame(rawOf(await fromNow.done), whole.slice(seen))
      t.strictSame(rawOf(first.frames), whole.slice(0, first.frames.length))
      t.match(whole.at(-1), /event: turn\.completed/)
      world.script(null)
    },
  )

  await t.test('a malformed cursor, or one of another session, is refused', async (t) => {
    const session = await world.session('openai key')
    const other = await world.session('openai key')
    const stream = await api.turn(session, 'one')
    const { turn } = stream
    const whole = await stream.done
    const [foreign] = await (await api.turn(other, 'one')).done
    for (const path of [`/v1/turns/${turn}/events`, `/v1/sessions/${session}/events`]) {
      for (const cursor of [
        'x',
        '1-1',
        '-',
        '1-1.zzzzzzzzzzzz',
        '1'.repeat(1000),
        foreign?.id ?? '',
        `${foreign?.id}.end`,
        `${whole.at(-1)?.id}x`,
      ]) {
        for (const answer of [
          await api.call('GET', path, undefined, { 'last-event-id': cursor }),
          await api.call('GET', `${path}?after=${encodeURIComponent(cursor)}`),
        ]) {
          t.match([answer.status, answer.body.error.code], [400, 'invalid_cursor'], `${path} ${cursor}`)
        }
      }
    }
  })
}

/** The deltas add up to what the messages hold; calls and results pair up. */
function assertWhole(t: Test, frames: Frame[]): void {
  const messages = ofType(frames, 'message').map(({ message }) => message)
  for (const step of [0, 1]) {
    const ofStep = frames.filter(({ data }) => data.step === step)
    const deltas = ofType(ofStep, 'content.delta').map(({ text }) => text)
    const [said] = ofType(ofStep, 'message').map(({ message }) => message)
    const texts = said.parts.flatMap((part: { type: string; text: string }) =>
      part.type === 'text' ? [part.text] : [],
    )
    t.equal(deltas.join(''), texts.join(''))
  }
  const calls = ofType(frames, 'tool_call')
  for (const { call_id, arguments: args } of calls) {
    const deltas = ofType(frames, 'tool_call.delta').filter((delta) => delta.call_id === call_id)
    t.strictSame(JSON.parse(deltas.map(({ arguments_delta }) => arguments_delta).join('')), args)
  }
  const results = messages.find(({ role }) => role === 'tool').parts
  t.strictSame(
    results.map(({ call_id }: { call_id: string }) => call_id),
    calls.map(({ call_id }) => call_id),
    'results stand in the order of the calls',
  )
  t.strictSame(
    ofType(frames, 'tool_execution.completed')
      .map(({ call_id }) => call_id)
      .sort(),
    calls.map(({ call_id }) => call_id).sort(),
  )
}

async function sessionStreams(t: Test, world: World) {
  const { api } = world
  await t.test('a session’s stream carries the same frames as those of its turns, and goes on', async (t) => {
    const session = await world.session('anthropic key', { connectors: ['kit'] })
    const early = await (await api.turn(session, 'before')).done
    const stream = await api.follow(`/v1/sessions/${session}/events`)
    const one = await (await api.turn(session, SCRIPT)).done
    const change = await api.patch(`/v1/sessions/${session}/tools/kit.echo`, { enabled: false })
    const two = await (await api.turn(session, 'two')).done
    await stream.until(({ raw }) => raw === two.at(-1)?.raw)
    const changes = stream.frames.filter(({ type }) => type === 'tools.changed')
    t.strictSame(
      rawOf(stream.frames),
      [...rawOf(one), ...rawOf(changes), ...rawOf(two)],
      'the stream begins at the present',
    )
    t.match(changes, [
      {
        data: {
          tools_revision: change.tools_revision,
          added: NONE,
          removed: NONE,
          changed: ['kit.echo'],
          turn_id: null,
        },
      },
    ])
    stream.leave()
    const whole = await api.follow(`/v1/sessions/${session}/events?after=start`)
    await whole.until(({ raw }) => raw === two.at(-1)?.raw)
    whole.leave()
    const turns = new Set([early, one, two].map(([first]) => first?.data.turn_id))
    const told = whole.frames.filter(({ data }) => turns.has(data.turn_id))
    t.strictSame(rawOf(told), rawOf([...early, ...one, ...two]))
    t.equal(whole.frames[0]?.type, 'tools.changed', 'the servers that the session began with')
    const resumed = await api.follow(`/v1/sessions/${session}/events?after=${one[0]?.id}`)
    await resumed.until(({ raw }) => raw === two.at(-1)?.raw)
    resumed.leave()
    t.strictSame(rawOf(resumed.frames), rawOf([...one.slice(1), ...changes, ...two]))
    const ids = whole.frames.map(({ id }) => id)
    t.equal(new Set(ids).size, ids.length)
  })

  await t.test('an idle stream is pinged', async (t) => {
    const session = await world.session('openai key')
    const stream = await api.follow(`/v1/sessions/${session}/events`)
    await eventually(() => stream.comments.includes('ping'))
    stream.leave()
    t.strictSame(stream.frames, [])
  })

  await t.test('a session that is deleted ends its streams', async (t) => {
    const session = await world.session('openai key')
    const stream = await api.follow(`/v1/sessions/${session}/events`)
    await (await api.turn(session, 'one')).done
    await api.delete(`/v1/sessions/${session}`)
    t.equal((await stream.done).at(-1)?.type, 'turn.completed')
    t.equal((await api.call('GET', `/v1/sessions/${session}/events`)).status, 404)
  })
}

async function gaps(t: Test, world: World) {
  const session = await world.session('openai key', { connectors: ['kit'] })
  const before = await (await world.api.turn(session, SCRIPT)).done
  const turn = before[0]?.data.turn_id
  const following = await world.api.follow(`/v1/sessions/${session}/events`)
  await world.restart()
  const { api } = world
  await t.test('streams end cleanly when their process ends', async (t) => {
    await following.done
    t.pass('ended')
  })

  if (world.backend === 'servers') {
    await t.test('no event is lost by a restart', async (t) => {
      const again = await api.follow(`/v1/turns/${turn}/events?after=${before[3]?.id}`)
      t.strictSame(rawOf(await again.done), rawOf(before.slice(4)))
    })
    return
  }

  await t.test('a cursor from before the restart gets a gap with a snapshot, once', async (t) => {
    const after = `/v1/turns/${turn}/events?after=${before[3]?.id}`
    const [gap, ...more] = await (await api.follow(after)).done
    t.strictSame(more, [])
    t.equal(gap?.type, 'gap')
    t.strictSame(gap?.data.snapshot, {
      turn: await shortTurn(world, turn),
      messages: await world.messages(session),
    })
    const again = await api.follow(`/v1/turns/${turn}/events`, { 'last-event-id': gap?.id ?? '' })
    t.equal(again.status, 204, 'the turn is over: an EventSource stops')
    const over = await api.follow(`/v1/turns/${turn}/events`, { 'last-event-id': before.at(-1)?.id ?? '' })
    t.equal(over.status, 204, 'an EventSource that had the whole turn stops, too')
    const unread = await api.follow(`/v1/turns/${turn}/events`)
    t.strictSame(typesOf(await unread.done), ['gap'], 'a turn that was never read is no empty stream')
  })

  await t.test('a session’s stream goes on after the gap', async (t) => {
    const stream = await api.follow(`/v1/sessions/${session}/events?after=${before[3]?.id}`)
    await stream.until('gap')
    const next = await (await api.turn(session, 'next')).done
    await stream.until('turn.completed')
    t.strictSame(rawOf(stream.frames.slice(1)), rawOf(next))
    stream.leave()
    const [gap] = stream.frames
    const resumed = await api.follow(`/v1/sessions/${session}/events?after=${gap?.id}`)
    await resumed.until('turn.completed')
    t.strictSame(rawOf(resumed.frames), rawOf(next), 'the gap’s id is a place to resume from')
    resumed.leave()
  })
}

/** A turn as snapshots show it: without the messages, which stand beside it. */
async function shortTurn({ api }: World, id: string) {
  const { messages: _, output_text: __, ...turn } = await api.get(`/v1/turns/${id}`)
  return turn
}

await everyBackend(
  t,
  async (t, world) => {
    await world.tools('kit', { echo: { run: ({ args }) => textResult(String(args.text)) } })
    await t.test('resuming a turn', (t) => resuming(t, world))
    await t.test('streams of sessions', (t) => sessionStreams(t, world))
    await t.test('after a restart', (t) => gaps(t, world))
  },
  { pingMs: 300 },
)
