/**
 * How a turn is started beside others and beside the history (api.md section 4): in a session that is busy, under
 * an Idempotency-Key, with edits of its context.
 */
import type { Test } from 'tap'
import { gate } from '../waiting.ts'
import { type Json, ofType, outline, PLAIN_TURN, spoken, typesOf } from './client.ts'
import { type World, wordsOf } from './harness.ts'
import { held, speaking, untilCancelled } from './held-turns.ts'
import { textResult } from './tool-server.ts'

// ---------------------------------------------------------------- busy sessions

export async function busySessions(t: Test, world: World) {
  const { api } = world
  const start = (session: string, body: Json) => api.call('POST', `/v1/sessions/${session}/turns`, body)

  await t.test('on_busy: reject, the default, names the turn that runs', async (t) => {
    const session = await world.session('openai key')
    const { stream, turn, open } = await speaking(world, session)
    const { status, body } = await start(session, { input: 'me too', stream: false })
    t.equal(status, 409)
    t.match(body.error, { code: 'turn_in_progress', details: { active_turn_id: turn } })
    open()
    await stream.done
    t.strictSame(spoken(await world.messages(session)), [
      ['user', 'held'],
      ['assistant', 'first second'],
    ])
  })

  await t.test('on_busy: enqueue runs turns afterwards, in order, each on the latest history', async (t) => {
    const session = await world.session('gemini key')
    const { stream, open } = await speaking(world, session)
    const second = await api.turn(session, { input: 'two', on_busy: 'enqueue' })
    const third = (await start(session, { input: 'three', on_busy: 'enqueue', background: true })).body
    t.match(third, { state: 'queued', started_at: null })
    t.strictSame(typesOf(second.frames), second.frames.length === 0 ? [] : ['turn.created'])
    open()
    await stream.done
    t.strictSame(outline(await second.done), PLAIN_TURN)
    t.match(await api.get(`/v1/turns/${third.id}?wait=60`), { state: 'completed', output_text: 'three' })
    t.strictSame(spoken(await world.messages(session)), [
      ['user', 'held'],
      ['assistant', 'first second'],
      ['user', 'two'],
      ['assistant', 'two'],
      ['user', 'three'],
      ['assistant', 'three'],
    ])
  })

  await t.test('the queue holds sixteen, and a queued turn can be cancelled', async (t) => {
    const session = await world.session('openai key')
    const { stream, open } = await speaking(world, session)
    const queued = []
    for (let i = 0; i < 16; i++) {
      queued.push((await start(session, { input: `number ${i}`, on_busy: 'enqueue', background: true })).body)
    }
    const { status, headers, body } = await start(session, { input: 'one more', on_busy: 'enqueue' })
    t.equal(status, 429)
    t.equal(body.error.code, 'queue_full')
    t.ok(Number(headers.get('retry-after')) > 0)
    const events = await api.follow(`/v1/turns/${queued[3].id}/events`)
    for (const { id } of queued.slice(1)) {
      const { status, body } = await api.call('POST', `/v1/turns/${id}/cancel?wait=true`)
      t.match([status, body.state], [200, 'cancelled'])
    }
    t.strictSame(outline(await events.done), ['turn.created', 'turn.cancelled'])
    open()
    await stream.done
    await api.get(`/v1/turns/${queued[0].id}?wait=60`)
    t.strictSame(spoken(await world.messages(session)), [
      ['user', 'held'],
      ['assistant', 'first second'],
      ['user', 'number 0'],
      ['assistant', 'number 0'],
    ])
  })

  await t.test(
    'on_busy: interrupt cancels the running turn, then runs; queued turns keep their place',
    async (t) => {
      const session = await world.session('anthropic key')
      const { stream, turn } = await speaking(world, session)
      const waiting = (await start(session, { input: 'I waited', on_busy: 'enqueue', background: true })).body
      const urgent = await api.turn(session, { input: 'urgent', on_busy: 'interrupt' })
      t.equal((await stream.done).at(-1)?.type, 'turn.cancelled')
      t.equal((await urgent.done).at(-1)?.type, 'turn.completed')
      t.match(await api.get(`/v1/turns/${turn}`), { state: 'cancelled' })
      t.match(await api.get(`/v1/turns/${waiting.id}?wait=60`), { state: 'completed' })
      const said = spoken(await world.messages(session))
      t.strictSame(said.slice(0, 2), [
        ['user', 'held'],
        ['assistant', 'first '],
      ])
      t.strictSame(
        said.slice(2).map(([, words]) => words),
        ['urgent', 'urgent', 'I waited', 'I waited'],
      )
      world.script(null)
    },
  )

  await t.test('where no turn runs, a new turn runs with any on_busy', async (t) => {
    for (const on_busy of ['reject', 'enqueue', 'interrupt']) {
      const session = await world.session('gemini key')
      t.match(await world.run(session, { input: 'hi', on_busy }), { state: 'completed', output_text: 'hi' })
    }
  })

  await t.test('on_busy: interrupt settles the calls that run as cancelled, outcome not known', async (t) => {
    const session = await world.session('openai key')
    const server = await world.tools('slow', { nap: { run: untilCancelled } })
    await api.put(`/v1/sessions/${session}/connectors/slow`)
    const stream = await api.turn(session, 'call slow__nap with {}')
    await stream.until('tool_execution.started')
    await server.called('nap')
    const next = await api.turn(session, { input: 'never mind', on_busy: 'interrupt' })
    t.equal((await next.done).at(-1)?.type, 'turn.completed')
    const [done] = ofType(await stream.done, 'tool_execution.completed')
    t.match(done, { outcome: 'cancelled', is_error: true, content: [{ text: /not known/ }] })
    const messages = await world.messages(session)
    t.strictSame(
      messages.map(({ role }) => role),
      ['user', 'assistant', 'tool', 'user', 'assistant'],
    )
  })
}

// ---------------------------------------------------------------- idempotency

const SAID = { role: 'user', parts: [{ type: 'text', text: 'Before.' }] }

export async function idempotency(t: Test, world: World) {
  const { api } = world
  const session = await world.session('openai key')
  const start = (body: Json, key: string, into = session) =>
    api.call('POST', `/v1/sessions/${into}/turns`, { stream: false, ...body }, { 'idempotency-key': key })
  const first = await start({ input: 'once' }, 'a')
  t.equal(first.status, 200)
  t.equal(first.headers.get('idempotent-replayed'), null)
  await t.test('the same key and body bring the same turn', async (t) => {
    const again = await start({ input: 'once' }, 'a')
    t.equal(again.headers.get('idempotent-replayed'), 'true')
    t.strictSame(again.body, first.body)
    const streamed = await api.turn(session, { input: 'once', stream: false }, { 'idempotency-key': 'a' })
    t.equal(streamed.status, 200)
    t.equal(spoken(await world.messages(session)).length, 2)
  })
  await t.test('a replayed stream tells the turn from its first event', async (t) => {
    const streamed = await api.turn(session, 'told', { 'idempotency-key': 's' })
    const frames = (await streamed.done).map(({ raw }) => raw)
    const again = await api.turn(session, 'told', { 'idempotency-key': 's' })
    t.equal(again.headers.get('idempotent-replayed'), 'true')
    t.strictSame(
      (await again.done).map(({ raw }) => raw),
      frames,
    )
  })
  await t.test('a repeat that would be refused by now brings the turn all the same', async (t) => {
    const fresh = await world.session('gemini key')
    const body = { input: 'once more', context: [{ op: 'insert_after', index: -1, message: SAID }] }
    const one = await start(body, 'n', fresh)
    t.equal(one.status, 200)
    const path = `/v1/credentials/${world.credentials['gemini key']}`
    await api.patch(path, { state: 'disabled' })
    const two = await start(body, 'n', fresh)
    t.match(await start(body, 'm', fresh), { status: 409, body: { error: { code: 'no_credential' } } })
    const other = await start({ ...body, input: 'something else' }, 'n', fresh)
    t.match(other, { status: 422, body: { error: { code: 'idempotency_mismatch' } } })
    await api.patch(path, { state: 'active', default: true })
    t.match(two, { status: 200, body: { id: one.body.id } })
    t.equal(two.headers.get('idempotent-replayed'), 'true')

    const own = { input: 'own', provider: 'gemini' }
    const before = await start(own, 'p', fresh)
    const { provider, model } = await api.get(`/v1/sessions/${session}`)
    await api.patch(`/v1/sessions/${fresh}`, { provider, model })
    t.match(await start(own, 'p', fresh), { status: 200, body: { id: before.body.id } })
    t.match(await start(own, 'q', fresh), {
      status: 400,
      body: { error: { param: 'model', message: /needs its own model/ } },
    })
  })
  await t.test('another body under the same key is refused', async (t) => {
    const { status, body } = await start({ input: 'twice' }, 'a')
    t.equal(status, 422)
    t.equal(body.error.code, 'idempotency_mismatch')
  })
  await t.test('keys belong to their session', async (t) => {
    const other = await world.session('openai key')
    const { status, headers } = await start({ input: 'twice' }, 'a', other)
    t.equal(status, 200)
    t.equal(headers.get('idempotent-replayed'), null)
  })
  await t.test('of ten requests at once with one key one runs, and all answer with its turn', async (t) => {
    const fresh = await world.session('gemini key')
    const all = await Promise.all(Array.from({ length: 10 }, () => start({ input: 'race' }, 'r', fresh)))
    t.strictSame([...new Set(all.map(({ status }) => status))], [200])
    t.equal(new Set(all.map(({ body }) => body.id)).size, 1)
    t.equal(all.filter(({ headers }) => headers.get('idempotent-replayed') === null).length, 1)
    t.equal((await world.messages(fresh)).length, 2)
  })
  await t.test('a turn that failed is replayed as it failed', async (t) => {
    const fresh = await world.session('openai key')
    world.script(() => ({
      status: 400,
      body: { error: { message: 'no', type: 'x', param: null, code: 'x' } },
    }))
    const one = await start({ input: 'fail' }, 'f', fresh)
    world.script(null)
    const two = await start({ input: 'fail' }, 'f', fresh)
    t.strictSame([one.status, two.status], [502, 502])
    t.equal(two.headers.get('idempotent-replayed'), 'true')
    t.equal(two.body.error.details.turn_id, one.body.error.details.turn_id)
    t.match(await start({ input: 'fail' }, 'g', fresh), { status: 200 }, 'another key tries again')
  })
  await t.test('a replay reaches a turn that still runs', async (t) => {
    const fresh = await world.session('openai key')
    const { opened, open } = gate()
    world.script(() => held(opened))
    const one = await api.turn(fresh, 'x', { 'idempotency-key': 'k' })
    const two = await api.turn(fresh, 'x', { 'idempotency-key': 'k' })
    await two.until('content.delta')
    open()
    t.strictSame(await one.done, await two.done)
    world.script(null)
  })
}

// ---------------------------------------------------------------- context edits

export async function contextEdits(t: Test, world: World) {
  const { api } = world
  await world.tools('ctx', { look: { run: () => textResult('seen') } })
  const session = await world.session('openai key', { connectors: ['ctx'] })
  await world.run(session, 'one')
  await world.run(session, 'call ctx__look with {}')
  const history = await world.messages(session)
  t.strictSame(
    history.map(({ role }) => role),
    ['user', 'assistant', 'user', 'assistant', 'tool', 'assistant'],
  )
  const message = (words: string) => ({ role: 'user', parts: [{ type: 'text', text: words }] })
  /** What a turn with these edits sends, as role and words. */
  const shown = async (context: Json[], input = 'now') => {
    const asked = world.sent('openai key').length
    await world.run(session, { input, context })
    for (const { id } of (await world.messages(session)).slice(history.length)) {
      // Results go with the message of their calls.
      await api.call('DELETE', `/v1/sessions/${session}/messages/${id}`)
    }
    return world
      .sent('openai key')
      .slice(asked)
      .map(({ body }) => wordsOf(body as Json))
  }
  const plain = ['one', 'one', 'call ctx__look with {}', '<look>', '=seen', 'The tools answered: seen', 'now']

  await t.test('every op is applied, in order, with indexes from both ends', async (t) => {
    t.strictSame(await shown([]), [plain])
    t.strictSame(await shown([{ op: 'delete_at', index: 0 }]), [plain.slice(1)])
    const context = [{ op: 'delete_at', index: -1 }]
    t.strictSame(await shown(context), [[...plain.slice(0, 5), 'now']])
    const { body } = await api.post(`/v1/sessions/${session}/render`, { input: 'now', context })
    t.strictSame(wordsOf(body), [...plain.slice(0, 5), 'now'], '/render counts without the input, too')
    t.strictSame(await shown([{ op: 'insert_before', index: 0, message: message('zero') }]), [
      ['zero', ...plain],
    ])
    t.strictSame(await shown([{ op: 'insert_after', index: -1, message: message('last') }]), [
      [...plain.slice(0, 6), 'last', 'now'],
    ])
    t.strictSame(await shown([{ op: 'insert_before', index: -1, message: message('mid') }]), [
      [...plain.slice(0, 5), 'mid', ...plain.slice(5)],
    ])
    t.strictSame(await shown([{ op: 'replace_at', index: -6, message: message('uno') }]), [
      ['uno', ...plain.slice(1)],
    ])
    t.strictSame(
      await shown([
        { op: 'delete_at', index: 0 },
        { op: 'delete_at', index: 0 },
        { op: 'insert_before', index: 0, message: message('first') },
        { op: 'replace_at', index: 0, message: message('really first') },
      ]),
      [['really first', ...plain.slice(2)]],
      'each index is read on the list that the one before left',
    )
    t.strictSame(
      await shown([
        { op: 'delete_at', index: 3 },
        { op: 'delete_at', index: 3 },
      ]),
      [[...plain.slice(0, 3), ...plain.slice(5)]],
      'a call may go with its result',
    )
    const many = (edit: Json) => Array.from({ length: 5000 }, () => edit)
    const added = many({ op: 'insert_before', index: 0, message: message('old') })
    const removed = many({ op: 'delete_at', index: 0 })
    t.strictSame(await shown([...added, ...removed]), [plain], 'a chat of thousands may be cut to its end')
  })

  await t.test('the edited history is the base of every step; the stored one is untouched', async (t) => {
    const sent = await shown([{ op: 'delete_at', index: 0 }], 'call ctx__look with {}')
    t.equal(sent.length, 2)
    for (const words of sent) t.strictSame(words.slice(0, 5), plain.slice(1, 6))
    t.strictSame(sent[1]?.slice(5), ['call ctx__look with {}', '<look>', '=seen'])
    t.strictSame(await world.messages(session), history)
    t.strictSame(await shown([]), [plain], 'the next turn has no edits')
  })

  await t.test('edits that do not fit are refused, and nothing is stored', async (t) => {
    const refused = async (context: Json[]) => {
      const { status, body } = await api.call('POST', `/v1/sessions/${session}/turns`, {
        input: 'x',
        context,
      })
      return [status, body.error.code, body.error.param]
    }
    const outside = [400, 'invalid_request', 'context[1].index']
    t.strictSame(await refused([{ op: 'delete_at', index: 3 }]), [
      400,
      'context_splits_tool_exchange',
      'context',
    ])
    t.strictSame(await refused([{ op: 'delete_at', index: -2 }]), [
      400,
      'context_splits_tool_exchange',
      'context',
    ])
    t.strictSame(await refused([{ op: 'insert_after', index: 3, message: message('between') }]), [
      400,
      'context_splits_tool_exchange',
      'context',
    ])
    const ok = { op: 'insert_before', index: 0, message: message('x') }
    t.strictSame(await refused([ok, { op: 'delete_at', index: 7 }]), outside)
    t.strictSame(await refused([ok, { op: 'delete_at', index: -8 }]), outside)
    t.strictSame(await world.messages(session), history)
  })

  await t.test('the edits of a queued turn apply to the history at its acceptance', async (t) => {
    const fresh = await world.session('openai key')
    await world.run(fresh, 'alpha')
    const { stream, open } = await speaking(world, fresh)
    const before = world.sent('openai key').length
    const queued = await api.turn(fresh, {
      input: 'queued',
      on_busy: 'enqueue',
      context: [{ op: 'delete_at', index: -1 }],
    })
    open()
    await Promise.all([stream.done, queued.done])
    const sent = wordsOf(world.sent('openai key').slice(before)[0]?.body as Json)
    t.strictSame(
      sent,
      ['alpha', 'alpha', 'first ', 'second', 'queued'],
      'the running turn’s input was the last message then',
    )
  })
}
