/**
 * Who may do what, over every operation that the OpenAPI document lists: a whole gateway that wants keys,
 * one owner with something of everything, another who tries it all, keys that do not open, and nonsense.
 */
import t, { type Test } from 'tap'
import { badBodies, ODD_TEXTS } from '../routes/nonsense.ts'
import { scratch } from '../scratch.ts'
import { eventually } from '../waiting.ts'
import { wholeGateway } from '../whole-gateway.ts'
import {
  ADMIN,
  accessWorld,
  type Call,
  exampleOf,
  filled,
  type Listed,
  MISSING,
  type Property,
} from './access-world.ts'
import type { Json } from './client.ts'

const { OPERATIONS, admin, document, guarded, held, isOpen, keyOf, propertyOf, tools, withKey } =
  await accessWorld(t)
const FOR_ADMINS = /^\/v1\/(keys|audit)\b/
const ann = await propertyOf('ann')
const bob = await propertyOf('bob')

/** Fields that depend on the moment and on the process, not on the owner. */
const PASSING = /"latency_ms":[\d.]+|"request_id":"\w+"|"last_seen_at":"[^"]*"|"status":\{"state":"\w+"\}/g
/** Everything that owners can see of their own, by path. */
async function everythingOf({ call, ids }: Property): Promise<Record<string, string>> {
  const reads = guarded
    .filter(({ method, path }) => method === 'GET' && !/events$|^\/v1\/(keys|audit|oauth)/.test(path))
    .map(async ({ path }) => [path, (await call('GET', filled(path, ids))).text.replace(PASSING, '')])
  return Object.fromEntries(await Promise.all(reads))
}

t.test('every operation answers another owner’s id as it answers an unknown id', async (t) => {
  const before = await everythingOf(ann)
  const withIds = guarded.filter(({ path }) => path.includes('{id}') && !FOR_ADMINS.test(path))
  t.ok(withIds.length >= 25, `${withIds.length} operations`)
  for (const operation of withIds) {
    const noun = (operation.path.split('/')[2] ?? '').replace(/s$/, '').replace('-', '_')
    const url = filled(operation.path, ann.ids)
    t.notMatch(url, MISSING, `${operation.name}: the owner has one of these`)
    const answer = await bob.call(operation.method, url, exampleOf(operation))
    t.match(answer, { status: 404, body: { error: { code: `${noun}_not_found` } } }, operation.name)
  }
  t.comment('and below sessions and turns of their own:')
  for (const operation of withIds.filter(({ path }) => /\{(message|connector|call_id)\}/.test(path))) {
    const own = { ...ann.ids, sessions: bob.ids.sessions ?? '', turns: bob.ids.turns ?? '' }
    const answer = await bob.call(operation.method, filled(operation.path, own), exampleOf(operation))
    t.match(answer, { status: 404, body: { error: { code: /_not_found$/ } } }, operation.name)
  }
  t.same(await everythingOf(ann), before, 'nothing of the other owner has changed')
})

t.test('the examples of credentials in the document are accepted', async (t) => {
  const { call } = await propertyOf('cleo')
  const makes = OPERATIONS.filter(({ method, path }) =>
    /^POST \/v1\/credentials(\/import)?$/.test(`${method} ${path}`),
  )
  t.equal(makes.length, 2)
  for (const operation of makes) {
    const answer = await call('POST', operation.path, exampleOf(operation))
    t.equal(answer.status, 201, `${operation.name}: ${answer.text}`)
  }
})

t.test('no list, no figure and no filter shows anything of another owner', async (t) => {
  const theirs = Object.entries(ann.ids).filter(([name]) => !['provider', 'call_id', 'tool'].includes(name))
  const lists = guarded.filter(
    ({ method, path }) => method === 'GET' && !path.includes('{') && !FOR_ADMINS.test(path),
  )
  t.ok(lists.length >= 5)
  for (const { path, name, parameters = [] } of lists) {
    const filters = parameters.filter(({ name }) => ['session_id', 'turn_id'].includes(name))
    const asked = filters.map(({ name }) => `${name}=${ann.ids[name === 'turn_id' ? 'turns' : 'sessions']}`)
    const group = parameters.some(({ name }) => name === 'group_by') ? ['group_by=session'] : []
    for (const query of [[], ...asked.map((one) => [one])]) {
      const answer = await bob.call('GET', `${path}?${[...query, ...group].join('&')}`)
      t.equal(answer.status, 200, `${name}?${query}`)
      if (query.length > 0) t.same(answer.body.data, [], `${name}?${query} is empty`)
      for (const [what, id] of theirs) t.notOk(answer.text.includes(id), `${name} shows no ${what}`)
    }
  }
  for (const field of [{ credential_id: ann.ids.credentials }, { connectors: [ann.ids.connectors] }]) {
    const body = { provider: 'openai', model: 'm', ...field }
    t.match(await bob.call('POST', '/v1/sessions', body), {
      status: 400,
      body: { error: { code: 'invalid_request', param: /^(credential_id|connectors\[0\])$/ } },
    })
  }
})

t.test('a key that is missing, unknown, expired, revoked or too weak opens nothing', async (t) => {
  const soon = new Date(Date.now() + 3000).toISOString()
  const [expiring, revoked, weak] = [
    await keyOf('ann', { expires_at: soon }),
    await keyOf('ann'),
    await keyOf('ann'),
  ]
  await admin('DELETE', `/v1/keys/${revoked.id}`)
  const expired = withKey(expiring.key)
  await eventually(async () => (await expired('GET', '/v1/sessions')).status === 401)
  const before = await everythingOf(ann)
  const closed: [string, Call][] = [
    ['no key', withKey(null)],
    ['an unknown key', withKey(`bk_${'x'.repeat(43)}`)],
    ['an expired key', expired],
    ['a revoked key', withKey(revoked.key)],
  ]
  t.ok(guarded.length >= 40, `${guarded.length} operations`)
  for (const operation of guarded) {
    for (const [what, call] of closed) {
      const answer = await call(operation.method, filled(operation.path, ann.ids), exampleOf(operation))
      t.match(
        answer,
        { status: 401, body: { error: { code: 'unauthenticated' } } },
        `${operation.name} with ${what}`,
      )
    }
  }
  t.same(await everythingOf(ann), before, 'nothing was done')

  const forAdmins: string[] = []
  for (const operation of guarded.filter(({ path }) => FOR_ADMINS.test(path))) {
    const url = filled(operation.path, { keys: revoked.id })
    const answer = await withKey(weak.key)(operation.method, url, exampleOf(operation))
    t.match(answer, { status: 403, body: { error: { code: 'forbidden' } } }, operation.name)
    forAdmins.push(operation.name)
  }
  t.same(forAdmins, [
    'POST /v1/keys',
    'GET /v1/keys',
    'POST /v1/keys/rotate-encryption',
    'DELETE /v1/keys/{id}',
    'GET /v1/audit',
  ])
  const open = OPERATIONS.filter(isOpen).map(({ name }) => name)
  t.same(
    open,
    [
      'GET /openapi.json',
      'GET /healthz',
      'GET /readyz',
      'GET /metrics',
      'GET /v1/oauth/connectors/callback',
      'GET /v1/oauth/connectors/client',
      'GET /v1/oauth/callback/{provider}',
    ],
    'the operations that need no key',
  )
})

t.test('only admins accept tools of a configured server, and nobody changes it over the API', async (t) => {
  const { data } = (await bob.call('GET', '/v1/connectors')).body
  const { id } = data.find(({ origin }: Json) => origin === 'config')
  const accept = `/v1/connectors/${id}/tools/look/accept`
  t.match(await bob.call('POST', accept), {
    status: 403,
    body: { error: { code: 'forbidden', message: /admin/ } },
  })
  t.match(await admin('POST', accept), { status: 200, body: { tool: 'look' } })
  t.match(await bob.call('POST', `/v1/connectors/${bob.ids.connectors}/tools/look/accept`), { status: 200 })
  for (const [method, body] of [['PATCH', { pin: 'block' }], ['DELETE']] as const) {
    t.match(await admin(method, `/v1/connectors/${id}`, body), {
      status: 409,
      body: { error: { code: 'read_only' } },
    })
  }
})

t.test('acts of administration are written down for admins to read', async (t) => {
  const acts: Json[] = []
  let cursor = ''
  do {
    const page = await admin('GET', `/v1/audit?limit=5${cursor}`)
    t.equal(page.status, 200)
    acts.push(...page.body.data)
    cursor = page.body.next_cursor === null ? '' : `&cursor=${page.body.next_cursor}`
  } while (cursor !== '')
  const did = acts.map(({ owner, act, subject }) => `${owner} ${act} ${subject}`)
  t.ok(did.includes(`ann credential.create ${ann.ids.credentials}`))
  t.ok(did.includes(`bob connector.create ${bob.ids.connectors}`))
  t.ok(did.includes(`bob connector.accept ${bob.ids.connectors}`))
  t.ok(did.some((text) => text.startsWith('admin key.revoke key_')))
  t.same(
    [...acts].sort((a, b) => (a.id < b.id ? 1 : -1)),
    acts,
    'newest first',
  )
  t.notMatch(JSON.stringify(acts), /sk-test|bk_/)
})

t.test('an owner may have only so many turns that run or wait, whatever other owners have', async (t) => {
  const { call, ids } = await propertyOf('dan')
  const chat = { provider: 'openai', model: 'gpt-5.6-sol' }
  const begin = async (calls: Call, connectors: unknown[], input: string) => {
    const { id } = (await calls('POST', '/v1/sessions', { ...chat, connectors })).body
    return calls('POST', `/v1/sessions/${id}/turns`, { input, background: true })
  }
  const hold = () => begin(call, [ids.connectors], 'call of-dan__hold with {}')
  const running = await Promise.all([hold(), hold(), hold()])
  t.same(
    running.map(({ status }) => status),
    [202, 202, 202],
  )
  t.match(await hold(), {
    status: 429,
    body: { error: { code: 'rate_limited', details: { retry_after: Number } } },
  })
  t.equal((await begin(bob.call, [], 'say hello')).status, 202)
  held.open()
  for (const { body } of running) {
    t.match(await call('GET', `/v1/turns/${body.id}?wait=30`), { body: { state: 'completed' } })
  }
  t.equal((await hold()).status, 202, 'there is room again')
})

t.test('no URL that a tenant gives leads to a private address that the operator did not open', async (t) => {
  const data = scratch(t)
  const serving = async (BATON_CONNECTORS_ALLOW_PRIVATE: string) => {
    const gateway = await wholeGateway(t, {
      BATON_DATA_DIR: data,
      BATON_AUTH: 'keys',
      BATON_ADMIN_KEY: ADMIN,
      BATON_DRAIN_SECONDS: '0',
      BATON_PUBLIC_URL: 'https://baton.test',
      BATON_CONNECTORS_ALLOW_PRIVATE,
    })
    return { as: (key: string) => withKey(key, gateway), close: gateway.close }
  }
  const http = { transport: 'streamable_http', url: tools.url }
  const open = await serving('true')
  const { key } = (await open.as(ADMIN)('POST', '/v1/keys', { owner: 'ann', scopes: ['chat'] })).body
  const begin = open.as(key)
  const plain = (await begin('POST', '/v1/connectors', { ...http, name: 'plain' })).body.id
  const login = { ...http, name: 'guarded', auth: { type: 'oauth' } }
  const guarded = (await begin('POST', '/v1/connectors', login)).body.id
  t.match((await begin('POST', `/v1/connectors/${plain}/test`)).body, { ok: true })
  await open.close()

  const call = (await serving('')).as(key)
  const refused = (param: string) => ({
    status: 400,
    body: { error: { code: 'address_not_allowed', param } },
  })
  for (const host of ['127.0.0.1', 'localhost', '[::1]', '169.254.169.254', '10.0.0.1']) {
    const url = `http://${host}/mcp`
    t.match(await call('POST', '/v1/connectors', { ...http, name: 'inner', url }), refused('url'), host)
    t.match(await call('PATCH', `/v1/connectors/${plain}`, { url }), refused('url'), host)
  }
  t.match(await call('PATCH', `/v1/connectors/${plain}`, { pin: 'block' }), { status: 200 })
  const chat = { provider: 'openai', model: 'gpt-5.6-sol' }
  const at = `/v1/sessions/${(await call('POST', '/v1/sessions', chat)).body.id}`
  const image = { type: 'image', media_type: 'image/png', url: 'http://127.0.0.1/x.png' }
  const message = { role: 'user', parts: [image] }
  t.match(await call('POST', `${at}/messages`, message), refused('parts[0].url'))
  t.match(await call('POST', `${at}/turns`, { input: [image] }), refused('input[0].url'))
  // A connector that was let in before is not reached any more.
  t.match((await call('POST', `/v1/connectors/${plain}/test`)).body, { ok: false, error: /not allowed/ })
  t.match(await call('POST', `/v1/connectors/${guarded}/login`), refused('url'))
})

t.test(
  'no input whatever makes a 500: every operation, every field, every kind of wrong value',
  async (t) => {
    const own = await propertyOf('cat')
    // A session that is free, so that turns with a good body begin.
    const chat = { provider: 'openai', model: 'gpt-5.6-sol' }
    own.ids.sessions = (await own.call('POST', '/v1/sessions', chat)).body.id
    const sweep = await sweepAll(t, own)
    t.same(sweep.faults, [])
    t.ok(sweep.count > 4000, `${sweep.count} requests`)
    t.match(
      await own.call('GET', filled('/v1/sessions/{id}', own.ids)),
      { status: 200 },
      'all is well afterwards',
    )
  },
)

async function sweepAll(t: Test, { ids }: Property): Promise<{ faults: string[]; count: number }> {
  const faults: string[] = []
  let count = 0
  const send = async ({ name, responses, method }: Listed, url: string, body?: unknown) => {
    const answer = await admin(method, url, body === undefined ? undefined : JSON.stringify(body))
    count++
    const isPage =
      answer.text.startsWith('<!doctype html>') && responses[400]?.content?.['text/html'] !== undefined
    const inShape = answer.status < 400 || isPage || typeof answer.body?.error?.request_id === 'string'
    if (answer.status >= 500 || !inShape)
      faults.push(`${name} ${url} ${JSON.stringify(body)} → ${answer.status} ${answer.text}`)
    return answer
  }
  for (const operation of OPERATIONS) {
    const { path, method, parameters = [], requestBody, name } = operation
    // A stream that is found has no end, and a thing that is deleted is gone for all later requests.
    const target = filled(path, /\/events$/.test(path) || method === 'DELETE' ? { provider: 'openai' } : ids)
    for (const { name } of parameters.filter((parameter) => parameter.in === 'query')) {
      for (const text of ODD_TEXTS) await send(operation, `${target}?${name}=${text}`)
      await send(operation, `${target}?${name}=1&${name}=2`)
    }
    for (const text of path.includes('{') ? ODD_TEXTS.slice(1) : []) {
      await send(operation, path.replace(/\{\w+\}/g, text))
    }
    const content = requestBody?.content['application/json']
    if (!content) continue
    const [good, ...bad] = badBodies(content.schema, exampleOf(operation), document)
    const isTurn = path.endsWith('/turns')
    for (const body of bad) await send(operation, target, isTurn ? inBackground(body) : body)
    if (!requestBody.required) {
      const param = (await send(operation, target)).body?.error?.param
      t.notOk(
        param in (content.schema.properties ?? {}),
        `${name} asks for no field of a body that may be absent`,
      )
    }
    t.match(
      await send(operation, target, { ...(good as object), unknown_field: 1 }),
      { status: 400, body: { error: { code: 'invalid_request', param: 'unknown_field' } } },
      `${name} refuses an unknown field`,
    )
  }
  return { faults, count }
}

/** A good turn would stream without end, so it runs in the background. A bad body stays as bad as it was. */
const inBackground = (body: unknown): unknown =>
  typeof body === 'object' &&
  body !== null &&
  !Array.isArray(body) &&
  !('background' in body && body.background !== false)
    ? { ...body, background: true }
    : body
