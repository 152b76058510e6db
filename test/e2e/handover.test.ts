/**
 * One conversation handed from any way to a model to any other (all ordered pairs), with everything in
 * it that a history can hold. The emulated vendors are as strict as the real ones, signatures
 * included: whatever would be refused there is refused here.
 */
import t, { type Test } from 'tap'
import { calls, type SceneItem } from '../emulators/scene.ts'
import { gate } from '../waiting.ts'
import { type Json, ofType } from './client.ts'
import {
  BACKEND,
  everyBackend,
  PATH_NAMES,
  PATHS,
  type Path,
  PROVIDERS,
  pathsIn,
  type World,
} from './harness.ts'
import { textResult } from './tool-server.ts'

/** One red pixel. */
const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=='
const image = { type: 'image', media_type: 'image/png', data: PNG }

/** Every text that must reach the next model has a mark; marks in reasoning and notices need not reach it. */
const MARK = /MARK-[a-z0-9-]+/g
const said = (text: string) => ({ type: 'text', text })
const foreign = (provider: string) => ({
  provider,
  model: 'some-model',
  credential_id: 'cred_gone',
  opaque: 'c2lnbmVk',
})

/** Messages as callers append them: legal for Baton, and a trap for one vendor or another. */
const GIVEN: Json[] = [
  { role: 'assistant', parts: [said('MARK-begins-with-the-assistant')] },
  { role: 'system', parts: [said('MARK-system-in-the-middle')] },
  { role: 'user', parts: [said('MARK-first-of-two')] },
  { role: 'user', parts: [said('MARK-second-of-two'), { ...image, name: 'dot.png' }, said('   ')] },
  {
    role: 'assistant',
    parts: [
      { type: 'reasoning', text: 'SECRET-openai', provenance: foreign('openai') },
      { type: 'reasoning', text: 'SECRET-anthropic', provenance: foreign('anthropic') },
      { type: 'reasoning', text: 'SECRET-gemini', provenance: foreign('gemini') },
      { ...said('MARK-said-before-calls'), provenance: foreign('gemini') },
      { type: 'notice', text: 'SECRET-notice' },
      {
        type: 'tool_call',
        call_id: `call_${'long'.repeat(60)}`,
        name: 'gone.with ünusual/name',
        arguments: { q: 'MARK-odd-name' },
      },
      {
        type: 'tool_call',
        call_id: 'with spaces: and/more',
        name: 'no_server_in_it',
        arguments: { deep: { list: ['MARK-deep'] } },
      },
      {
        type: 'tool_call',
        call_id: 'call_same',
        name: `kit.${'x'.repeat(200)}`,
        arguments: {},
        provenance: foreign('gemini'),
      },
    ],
  },
  {
    role: 'tool',
    parts: [
      // The results are not in the order of the calls, and there is one of each kind.
      {
        type: 'tool_result',
        call_id: 'call_same',
        name: `kit.${'x'.repeat(200)}`,
        content: [said('MARK-denied')],
        outcome: 'denied',
      },
      {
        type: 'tool_result',
        call_id: `call_${'long'.repeat(60)}`,
        name: 'gone.with ünusual/name',
        content: [said('MARK-with-image'), image],
      },
      {
        type: 'tool_result',
        call_id: 'with spaces: and/more',
        name: 'no_server_in_it',
        content: [],
        structured: { rows: [{ id: 1, word: 'MARK-structured' }] },
      },
    ],
  },
  {
    role: 'assistant',
    parts: [
      { type: 'tool_call', call_id: 'call_same', name: 'kit.one', arguments: { again: 'MARK-same-id' } },
    ],
  },
  {
    role: 'tool',
    parts: [
      {
        type: 'tool_result',
        call_id: 'call_same',
        name: 'kit.one',
        content: [said('MARK-cancelled')],
        outcome: 'cancelled',
      },
    ],
  },
  {
    role: 'assistant',
    parts: [
      said('MARK-call-without-result'),
      { type: 'tool_call', call_id: 'call_open', name: 'kit.one', arguments: {} },
    ],
  },
  { role: 'user', parts: [said('MARK-went-on')] },
  {
    role: 'tool',
    parts: [{ type: 'tool_result', call_id: 'call_orphan', name: 'kit.one', content: [said('MARK-orphan')] }],
  },
  { role: 'assistant', parts: [said('MARK-one-of-two-answers')] },
  { role: 'assistant', parts: [said('MARK-two-of-two-answers')] },
]

/** What a model leaves behind on a path: reasoning, parallel and failed calls, a cut and a discarded answer. */
async function live(world: World, session: string): Promise<void> {
  const { api } = world
  await world.run(
    session,
    'think\nsay MARK-live-text\ncall kit__one with {"n": "MARK-live-one"}\ncall kit__picture with {}\ncall kit__table with {}\ncall kit__fail with {}',
  )
  const { opened, open } = gate()
  const speech: SceneItem[] = [
    { type: 'reasoning', parts: ['SECRET-cut'] },
    { type: 'text', text: 'MARK-cut-short' },
  ]
  world.script(() => ({
    items: [...speech, ...calls(['kit__one', {}]).items, { type: 'wait', until: opened }],
  }))
  const cut = await api.turn(session, 'MARK-to-be-cancelled')
  await cut.until('content.delta')
  await api.post(`/v1/turns/${cut.turn}/cancel?wait=true`)
  let asked = 0
  world.script(() => (asked++ === 0 ? { items: [...discarded, { type: 'wait', until: opened }] } : null))
  const discarded = [{ type: 'text', text: 'SECRET-discarded' } as const]
  const restarted = await api.turn(session, 'say MARK-after-restart')
  await restarted.until('content.delta')
  await api.post(`/v1/turns/${restarted.turn}/restart`)
  await restarted.done
  open()
  world.script(null)
  await world.run(session, 'think\ncall kit__one with {"n": "MARK-second-round"}')
}

const marksIn = (messages: Json[]): string[] => {
  const shown = messages.map(({ parts }) =>
    parts.filter(({ type }: Json) => type !== 'reasoning' && type !== 'notice'),
  )
  return [...new Set(JSON.stringify(shown).match(MARK))]
}

async function switchTo(world: World, session: string, path: Path): Promise<void> {
  await world.api.patch(`/v1/sessions/${session}`, { ...PATHS[path], credential_id: world.credentials[path] })
}

/** A turn with reasoning and a tool call on the path; gives the requests that it sent. */
async function turnOn(t: Test, world: World, session: string, path: Path): Promise<string[]> {
  await switchTo(world, session, path)
  const before = world.sent(path).length
  const stream = await world.api.turn(
    session,
    'think\nsay MARK-handed-over\ncall kit__one with {"n": "MARK-on-target"}',
  )
  const frames = await stream.done
  const last = frames.at(-1)
  t.equal(last?.type, 'turn.completed', JSON.stringify(last?.data.error))
  t.match(ofType(frames, 'tool_execution.completed'), [{ outcome: 'ok' }])
  const sent = world.sent(path).slice(before)
  t.equal(sent.length, 2, 'each request was taken at once')
  return sent.map(({ text }) => text)
}

async function pairs(t: Test, world: World) {
  const { api } = world
  for (const source of pathsIn(world)) {
    const session = await world.session(source, { connectors: ['kit'], instructions: 'MARK-instructions' })
    for (const message of GIVEN) await api.post(`/v1/sessions/${session}/messages`, message)
    await live(world, session)
    // One answer is edited for good, and one whole exchange is deleted.
    const history = await world.messages(session)
    const edited = history.find(({ parts }) =>
      parts.some(({ text }: Json) => text === 'MARK-two-of-two-answers'),
    )
    await api.patch(`/v1/sessions/${session}/messages/${edited.id}`, { parts: [said('MARK-edited')] })
    const gone = history.find(({ parts }) => parts.some(({ arguments: args }: Json) => args?.again))
    await api.delete(`/v1/sessions/${session}/messages/${gone.id}`)
    const base = await world.messages(session)
    const marks = marksIn(base)
    t.ok(marks.length > 20, marks.join(' '))

    for (const target of PATH_NAMES) {
      if (target === source) continue
      await t.test(`${source} → ${target}`, async (t) => {
        const sent = await turnOn(t, world, session, target)
        for (const body of sent) {
          t.strictSame(
            marks.filter((mark) => !body.includes(mark)),
            [],
            'nothing said is lost',
          )
          t.notMatch(body, /SECRET-/, 'reasoning, notices and discarded text never become text')
          t.match(body, /image\/png/)
          t.match(body, /MARK-instructions/)
        }
        t.strictSame(
          (await world.messages(session)).slice(0, base.length),
          base,
          'no turn has changed the history',
        )
        for (const { id } of (await world.messages(session)).slice(base.length)) {
          await api.call('DELETE', `/v1/sessions/${session}/messages/${id}`)
        }
        t.strictSame(await world.messages(session), base)
      })
    }
  }

  await t.test('a session goes through all paths twice, and every turn completes', async (t) => {
    const session = await world.session('gemini key', { connectors: ['kit'] })
    const way = [...PATH_NAMES, ...PATH_NAMES].sort((a, b) => a.length - b.length)
    for (const path of way) await turnOn(t, world, session, path)
    t.equal((await world.messages(session)).length, way.length * 4)
  })
}

/** A vendor's own reasoning goes back to it, and to nobody else, also when others spoke in between. */
async function tokens(t: Test, world: World) {
  // On the other backend one path of each provider is enough: only the store of the token differs.
  for (const source of world.backend === BACKEND ? PATH_NAMES : PROVIDERS) {
    await t.test(`reasoning of ${source} comes back to it alone`, async (t) => {
      const session = await world.session(source, { connectors: ['kit'] })
      await turnOn(t, world, session, source)
      const own = (await world.messages(session)).flatMap(({ parts }) =>
        parts.flatMap(
          ({ provenance }: Json) => /[A-Za-z0-9+/_-]{24,}/.exec(provenance?.opaque ?? '')?.[0] ?? [],
        ),
      )
      t.ok(own.length > 0, 'the reasoning leaves a token')
      for (const target of PATH_NAMES) {
        if (target === source) continue
        const [first = ''] = await turnOn(t, world, session, target)
        t.notOk(
          own.some((token) => first.includes(token)),
          `${target} does not get the token`,
        )
      }
      const [again = ''] = await turnOn(t, world, session, source)
      t.ok(
        own.every((token) => again.includes(token)),
        'the token comes back',
      )
    })
  }
}

await everyBackend(t, async (t, world) => {
  await world.tools('kit', {
    one: { run: ({ args }) => textResult(`one got ${JSON.stringify(args)}`) },
    picture: {
      run: () => ({
        content: [
          { type: 'text', text: 'MARK-live-picture' },
          { type: 'image', mimeType: 'image/png', data: PNG },
        ],
      }),
    },
    table: {
      run: () => ({
        content: [{ type: 'text', text: '{"rows":["MARK-live-table"]}' }],
        structuredContent: { rows: ['MARK-live-table'] },
      }),
    },
    fail: { run: () => Promise.reject(new Error('MARK-live-failure')) },
  })
  await t.test('every pair', (t) => pairs(t, world))
  await t.test('tokens', (t) => tokens(t, world))
})
