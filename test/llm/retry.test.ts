/** Which requests are sent again after a failure, and which are not. */
import t from 'tap'
import { withoutReasoning, withoutUnread } from '../../providers/amend.ts'
import type { MessageInput, Part } from '../../src/chat/message.ts'
import { marksOf } from '../../src/chat/repair.ts'
import { BatonError } from '../../src/errors.ts'
import type { Deployment, UpstreamFailure } from '../../src/provider.ts'
import { PNG, pngOf } from '../emulators/bytes.ts'
import { freePort } from '../servers.ts'
import {
  type Answer,
  bench,
  collect,
  cut,
  failure,
  frame,
  REQUEST,
  rawServer,
  status,
  stream,
  textOf,
  USAGE,
  upstream,
  upstreamServer,
  vendor,
  whole,
} from './made-up-vendor.ts'

const JSON_TYPE = { 'content-type': 'Application/JSON' }

t.test('retries', async (t) => {
  t.test('an overload is tried again twice, with a growing wait, then given up', async (t) => {
    const server = await upstreamServer(t, status(503, 'busy'))
    const { call, waits, retries, calls, logged } = bench(t, server.url)
    const error = await failure(call())
    t.equal(error.code, 'upstream_overloaded')
    const lines = logged.map((line) => JSON.parse(line)).filter(({ level }) => level === 20)
    t.match(lines, [
      { attempt: 1, ms: 200 },
      { attempt: 2, ms: 400 },
    ])
    t.same(error.details, { upstream: { message: 'busy' } })
    t.equal(server.requests.length, 3)
    t.same(waits, [200, 400])
    t.same(retries, ['upstream_overloaded', 'upstream_overloaded'])
    t.match(calls, [{ outcome: 'upstream_overloaded' }])
  })

  t.test('the second attempt may succeed', async (t) => {
    const server = await upstreamServer(t, status(500), whole)
    const { call, calls } = bench(t, server.url)
    t.equal(textOf((await collect(call())).batches), 'hello')
    t.match(calls, [{ outcome: 'ok' }])
  })

  t.test('a rate limit is waited for only if it says how long, and the time is short', async (t) => {
    const cases: [headers: Record<string, string>, hits: number, waits: number[]][] = [
      [{ 'retry-after': '2' }, 2, [2200]],
      [{ 'retry-after': '4' }, 2, [4200]],
      [{ 'retry-after': '5' }, 1, []],
      [{ 'retry-after': '60' }, 1, []],
      [{}, 1, []],
    ]
    for (const [headers, hits, expected] of cases) {
      const server = await upstreamServer(t, status(429, '', headers), whole)
      const { call, waits } = bench(t, server.url)
      const { thrown } = await collect(call())
      t.equal(server.requests.length, hits, JSON.stringify(headers))
      t.same(waits, expected)
      if (hits === 1) t.match(thrown, { code: 'upstream_rate_limited' })
    }
  })

  t.test('the waits that a vendor names for a call stay under a limit together', async (t) => {
    const busy = (seconds: number) => status(503, '', { 'retry-after': `${seconds}` })
    const cases: [answers: Answer[], waits: number[]][] = [
      [[busy(4)], [4200]],
      [[busy(4), busy(3)], [4200]],
      [[busy(3)], [3200, 3400]],
      [[busy(0)], [200, 400]],
    ]
    for (const [answers, expected] of cases) {
      const server = await upstreamServer(t, ...answers)
      const { call, waits } = bench(t, server.url)
      await failure(call())
      t.same(waits, expected)
    }
    const server = await upstreamServer(t, busy(4))
    t.equal((await failure(bench(t, server.url).call())).retryAfter, 4)
  })

  t.test('a request for which the vendor says that it was too slow is tried again', async (t) => {
    const server = await upstreamServer(t, status(504), whole)
    const classify = ({ body }: UpstreamFailure) => upstream('upstream_timeout', body)
    const { call } = bench(t, server.url)
    t.equal(textOf((await collect(call({ deployment: { ...vendor, classify } }))).batches), 'hello')
  })

  t.test('what the vendor says about trying again is heeded, within the same limits', async (t) => {
    const cases: [code: number, headers: Record<string, string>, hits: number][] = [
      [503, { 'x-should-retry': 'false' }, 1],
      [429, { 'x-should-retry': 'false', 'retry-after': '1' }, 1],
      [400, { 'x-should-retry': 'true' }, 3],
      [429, { 'x-should-retry': 'true' }, 1],
      [429, { 'x-should-retry': 'true', 'retry-after': '60' }, 1],
    ]
    for (const [code, headers, hits] of cases) {
      const server = await upstreamServer(t, status(code, '', headers))
      await failure(bench(t, server.url).call())
      t.equal(server.requests.length, hits, `${code} ${JSON.stringify(headers)}`)
    }
  })

  t.test('a request that was refused is not sent again', async (t) => {
    const server = await upstreamServer(t, status(400, 'bad'))
    const error = await failure(bench(t, server.url).call())
    t.equal(error.code, 'upstream_rejected')
    t.equal(server.requests.length, 1)
  })

  t.test('a connection that is refused or reset before the answer is tried again', async (t) => {
    let sockets = 0
    const server = await rawServer(t, (socket) => {
      sockets++
      socket.once('data', () => socket.resetAndDestroy())
    })
    const reset = await failure(bench(t, `http://127.0.0.1:${server.port}`).call())
    t.match(reset, { code: 'upstream_disconnected', details: { phase: 'headers' } })
    t.equal(sockets, 3)

    const { waits, call, logged } = bench(t, `http://127.0.0.1:${await freePort()}`)
    const refused = await failure(call())
    const why = { phase: 'connect', reason: 'ECONNREFUSED' }
    t.match(refused, { code: 'upstream_disconnected', details: why })
    t.equal(waits.length, 2)
    const line = { level: 40, msg: 'model call ended', outcome: 'upstream_disconnected', attempts: 3, ...why }
    t.match(
      JSON.parse(logged.at(-1) ?? ''),
      { ...line, credential_id: 'cred_1' },
      'the line of the call is a warning',
    )
  })

  t.test('an answer that was cut is never asked for again', async (t) => {
    const cases: [name: string, answer: Answer, text: string][] = [
      ['after an event', cut(frame({ text: 'so far' })), 'so far'],
      ['after bytes that are no event', cut(': hello\n\n'), ''],
      ['ended without its last frame', stream(frame({ text: 'a' })), 'a'],
      ['ended with nothing', stream(), ''],
    ]
    for (const [name, answer, text] of cases) {
      const server = await upstreamServer(t, answer)
      const { batches, thrown } = await collect(bench(t, server.url).call())
      t.match(thrown, { code: 'upstream_disconnected' }, name)
      t.equal(textOf(batches), text)
      t.equal(server.requests.length, 1)
    }
  })

  t.test(
    'an overload told as the first event is tried again, and the usage told before it is dropped',
    async (t) => {
      const overloaded =
        frame({}) + frame({ usage: { ...USAGE, input_tokens: 99 } }) + frame({ error: 'upstream_overloaded' })
      const server = await upstreamServer(t, stream(overloaded), whole)
      const { call, calls } = bench(t, server.url)
      const { batches } = await collect(call())
      t.same(batches.flat().length, 3)
      t.match(calls, [{ outcome: 'ok', usage: USAGE }])
      t.equal(server.requests.length, 2)
    },
  )

  const inside = stream(frame({ error: 'upstream_overloaded' }))

  t.test('another failure after such an overload is tried again as well', async (t) => {
    const limited = stream(frame({ error: 'upstream_rate_limited', wait: 1 }))
    const reset: Answer = (response) => response.socket?.resetAndDestroy()
    for (const second of [limited, reset]) {
      const server = await upstreamServer(t, inside, second, whole)
      t.equal(textOf((await collect(bench(t, server.url).call())).batches), 'hello')
    }
  })

  t.test('such an overload is not tried again twice, and not after an event was handed on', async (t) => {
    const twice = await upstreamServer(t, inside)
    t.equal((await failure(bench(t, twice.url).call())).code, 'upstream_overloaded')
    t.equal(twice.requests.length, 2)

    const later = await upstreamServer(
      t,
      stream(frame({ text: 'a' }) + frame({ error: 'upstream_overloaded' })),
    )
    const { batches, thrown } = await collect(bench(t, later.url).call())
    t.equal(textOf(batches), 'a', 'the text before the error in the same read is delivered')
    t.match(thrown, { code: 'upstream_overloaded' })
    t.equal(later.requests.length, 1)

    const classify = ({ body }: UpstreamFailure) => upstream('upstream_overloaded', body)
    for (const [begun, hits, place] of [
      ['', 3, 'a stream it is one as any other'],
      [frame({ usage: USAGE }), 2, "a stream's rest it is such a one"],
    ] as const) {
      const bare = await upstreamServer(t, status(200, `${begun}{"error": "busy"}`, JSON_TYPE))
      await failure(bench(t, bare.url).call({ deployment: { ...vendor, classify } }))
      t.equal(bare.requests.length, hits, `as JSON in place of ${place}`)
    }
  })
})

t.test(
  'a refused request is amended for one thing after another, where the deployment knows how',
  async (t) => {
    const deployment: Deployment = {
      ...vendor,
      amend: ({ status, body }, request) =>
        status === 400 ? { ...request, instructions: `${request.instructions} ${body}` } : null,
    }
    const instructions = ({ requests }: { requests: { text: string }[] }) =>
      requests.map(({ text }) => JSON.parse(text).instructions)
    const server = await upstreamServer(t, status(400, 'a'), status(400, 'b'), whole)
    const amended: UpstreamFailure[] = []
    const { call } = bench(t, server.url)
    t.equal(textOf((await collect(call({ deployment, amended }))).batches), 'hello')
    t.same(instructions(server), ['Be brief.', 'Be brief. a', 'Be brief. a b'])
    await collect(call({ deployment, amended }))
    t.equal(
      instructions(server).at(-1),
      'Be brief. a b',
      'a later call sends at once what an earlier call learned',
    )

    const forced = { ...REQUEST, settings: { tool_choice: 'required' as const } }
    const free: Deployment = {
      ...deployment,
      amend: (failure, request) =>
        request.settings.tool_choice ? { ...request, settings: {} } : deployment.amend(failure, request),
    }
    const crowded = await upstreamServer(t, status(400, 'a'), whole)
    const first = { deployment: free, amended: [], request: forced }
    const { call: turn } = bench(t, crowded.url)
    await collect(turn(first))
    await collect(turn({ ...first, request: REQUEST }))
    t.equal(crowded.requests.length, 3)
    t.same(
      instructions(crowded).at(-1),
      'Be brief.',
      'a later call forces no choice, so a refusal of one is no refusal of what it holds',
    )

    for (const code of ['upstream_rejected', 'context_too_long'] as const) {
      const streamed = stream(frame({ usage: USAGE }) + frame({ error: code }))
      const early = await upstreamServer(t, streamed, whole)
      t.equal(textOf((await collect(bench(t, early.url).call({ deployment }))).batches), 'hello')
      t.match(
        instructions(early).at(-1),
        new RegExp(`brief\\. .*${code}`),
        'a refusal at the beginning of a stream is amended for, too',
      )

      const misnamed = await upstreamServer(t, status(500, '{"error": "no images"}'), whole)
      const classify = () => new BatonError(code, 'It takes no images.')
      t.equal(
        textOf(
          (await collect(bench(t, misnamed.url).call({ deployment: { ...deployment, classify } }))).batches,
        ),
        'hello',
      )
      t.match(instructions(misnamed).at(-1), /brief\. .*no images/, '… and so is one under a wrong status')
    }
    const relayed = await upstreamServer(t, status(200, '{"error": {"param": "x"}}', JSON_TYPE), whole)
    t.equal(textOf((await collect(bench(t, relayed.url).call({ deployment }))).batches), 'hello')
    t.equal(
      instructions(relayed).at(-1),
      'Be brief. {"error": {"param": "x"}}',
      '… or a good one, word for word',
    )

    const endless = await upstreamServer(t, status(400, 'c'))
    t.equal((await failure(bench(t, endless.url).call({ deployment }))).code, 'upstream_rejected')
    t.equal(endless.requests.length, 4)

    const hopeless = await upstreamServer(t, status(400))
    await failure(bench(t, hopeless.url).call({ amended }))
    t.equal(hopeless.requests.length, 1)

    const page = status(200, '<title>Blocked</title>', { 'content-type': 'text/html' })
    const json = status(200, '{"answer": "whole"}', JSON_TYPE)
    const unasked = status(200, '{"error" : null, "answer": "whole"}', JSON_TYPE)
    for (const [answer, code] of [
      [status(500, '{"error": "busy"}'), 'upstream_overloaded'],
      [stream(frame({ error: 'upstream_overloaded' })), 'upstream_overloaded'],
      [page, 'upstream_rejected'],
      [json, 'upstream_rejected'],
      [unasked, 'upstream_rejected'],
    ] as const) {
      const server = await upstreamServer(t, answer)
      t.equal((await failure(bench(t, server.url).call({ deployment }))).code, code)
      t.notMatch(
        instructions(server).join(),
        /brief\. /,
        'an answer that is no refusal is no reason to amend',
      )
    }
  },
)

t.test(
  'what a refusal tells about the model is learned for all calls, and not noted for the turn',
  async (t) => {
    const told = { id: 'one', reasoning_summary: false } as const
    const deployment: Deployment = {
      ...vendor,
      amend: (_, request) => (request.reported ? null : { ...request, reported: told }),
      render: (request) => ({ ...vendor.render(request), body: { known: request.reported ?? null } }),
    }
    const server = await upstreamServer(t, status(400, 'no summary'), whole)
    const amended: UpstreamFailure[] = []
    const { call, llm, logged } = bench(t, server.url)
    await collect(call({ deployment, amended }))
    t.strictSame(
      server.requests.map(({ text }) => JSON.parse(text)),
      [{ known: null }, { known: told }],
    )
    t.strictSame(amended, [])
    t.strictSame(llm.models.known(deployment, REQUEST.credential, 'one'), told)
    const lines = logged.map((line) => JSON.parse(line)).filter(({ known }) => known)
    t.match(lines, [
      { level: 30, turn_id: 'turn_1', provider: 'made-up', deployment: 'made-up-key', known: told },
    ])
    t.equal(lines.length, 1)

    const other = { ...deployment, amend: (_: unknown, request: typeof REQUEST) => ({ ...request }) }
    const again = await upstreamServer(t, status(400, 'something else'), whole)
    await collect(
      bench(t, again.url).call({ deployment: other, amended, request: { ...REQUEST, reported: told } }),
    )
    t.match(
      amended,
      [{ body: 'something else' }],
      'a refusal that tells nothing about the model is noted for the turn',
    )
  },
)

t.test('what a model refused is known in its chat for an hour, once it answers without it', async (t) => {
  const provenance = { provider: 'made-up', model: 'one', credential_id: 'cred_1', opaque: 'token' }
  const thought: Part = { type: 'reasoning', text: 'Hm.', provenance }
  const image: Part = { type: 'image', media_type: 'image/png', data: PNG }
  const linked: Part = { type: 'image', media_type: 'image/png', url: 'https://x.test/a.png' }
  const asked: MessageInput = { role: 'user', parts: [{ type: 'text', text: 'go' }] }
  const later = { ...image, data: pngOf(1, 1) }
  const messages: MessageInput[] = [
    { role: 'user', parts: [image, linked] },
    { role: 'assistant', parts: [thought] },
    { role: 'user', parts: [later] },
  ]
  const deployment: Deployment = {
    ...vendor,
    amend: ({ body }, request) =>
      body === 'thought' ? withoutReasoning(request) : withoutUnread(request, body, [[/image/, () => true]]),
    classify: ({ status, body }) => upstream(status === 413 ? 'context_too_long' : 'upstream_rejected', body),
  }
  let clock = 0
  const open = async (answers: Answer[]) => {
    const server = await upstreamServer(t, ...answers)
    const { call, llm } = bench(t, server.url, { now: () => clock })
    const ask = (messages: MessageInput[]) =>
      collect(call({ deployment, amended: [], request: { ...REQUEST, messages } }))
    const known = (to = {}, history = messages, session = REQUEST.session_id) => {
      const target = { provider: 'made-up', model: 'one', credential_id: REQUEST.credential.id, ...to }
      const marks = llm.refused.known(session, target, history)
      return marks && [...marks]
    }
    return { ask, known }
  }
  const refuse = async (answers: Answer[], history = messages) => {
    const { ask, known } = await open(answers)
    await ask(history)
    return known
  }
  const known = await refuse([status(400, 'thought'), status(400, 'image'), whole])
  const refused = [...marksOf(image), ...marksOf(thought)]
  t.strictSame(known(), refused, 'an address may answer the next time, and what was just given may be sound')
  t.strictSame(known({}, [...messages, asked]), refused)
  t.strictSame(known({}, messages.slice(1)), [], 'the others may be sound')
  t.strictSame(known({}, messages.slice(0, -1)), refused)
  t.equal(known({ model: 'two' }), undefined)
  t.equal(known({ provider: 'another' }), undefined)
  t.equal(known({ credential_id: 'cred_2' }), undefined, 'it may lead to another backend')
  t.equal(known({}, messages, 'ses_2'), undefined)
  clock += 3_600_000
  t.equal(known(), undefined)

  const guessed = await refuse([status(400, 'image'), status(400, 'else')])
  t.equal(guessed(), undefined, 'a guess that did not help is not kept')
  const sound = await refuse([whole], [asked])
  t.equal(sound(), undefined)
  const tooMuch = await refuse([status(413, 'image'), whole])
  t.strictSame(tooMuch(), marksOf(image))
  t.strictSame(tooMuch({}, messages.slice(0, -1)), [], 'it was too much with what was just given')

  const twice = await open([status(400, 'image'), whole, status(400, 'thought'), whole])
  await twice.ask(messages)
  clock += 1_800_000
  await twice.ask(messages)
  t.strictSame(twice.known(), refused, 'one refusal after the other')
  clock += 1_800_000
  t.equal(twice.known(), undefined, 'the first is an hour old')
  const again = await open([status(400, 'thought'), status(400, 'image'), whole, status(400, 'image'), whole])
  await again.ask(messages)
  await again.ask([...messages.slice(0, 1), asked])
  t.strictSame(again.known(), marksOf(image), 'what was refused without the other says which one it was')
})

t.test('a 401 renews the credential once', async (t) => {
  const accepting: Answer = (response, request) =>
    request.headers.authorization === 'Bearer second-token'
      ? whole(response, request)
      : status(401)(response, request)
  const server = await upstreamServer(t, accepting)
  let token = 'first-token'
  const renewed = await collect(
    bench(t, server.url).call({
      secret: async () => ({ api_key: token }),
      onUnauthorized: async () => {
        token = 'second-token'
        return true
      },
    }),
  )
  t.equal(textOf(renewed.batches), 'hello')

  let asked = 0
  const refusing = await upstreamServer(t, status(401))
  const onUnauthorized = async () => ++asked > 0
  t.equal((await failure(bench(t, refusing.url).call({ onUnauthorized }))).code, 'upstream_auth')
  t.equal(asked, 1)
  t.equal(refusing.requests.length, 2)
  await failure(bench(t, refusing.url).call({ onUnauthorized: async () => false }))
  t.equal(refusing.requests.length, 3, 'the request is not sent again when the renewal did not help')
})

t.test(
  "a refusal of the account is not tried with another token, unless the vendor's table says so",
  async (t) => {
    let asked = 0
    const onUnauthorized = async () => ++asked > 0
    const denied = { ...vendor, classify: ({ body }: UpstreamFailure) => upstream('upstream_auth', body) }
    const closed = await upstreamServer(t, status(403, 'suspended'))
    const error = await failure(bench(t, closed.url).call({ deployment: denied, onUnauthorized }))
    t.equal(error.code, 'upstream_auth')
    const edge = { ...vendor, classify: ({ body }: UpstreamFailure) => upstream('upstream_rejected', body) }
    const page = await upstreamServer(t, status(401, '<title>Blocked</title>'))
    await failure(bench(t, page.url).call({ deployment: edge, onUnauthorized }))
    t.equal(asked, 0)
    t.equal(closed.requests.length + page.requests.length, 2)
    const revoked = await upstreamServer(t, status(403, 'revoked'), whole)
    const deployment = { ...denied, renewOn: [401, 403] }
    t.equal(
      textOf((await collect(bench(t, revoked.url).call({ deployment, onUnauthorized }))).batches),
      'hello',
    )
    t.equal(asked, 1)
  },
)
