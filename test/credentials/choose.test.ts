/** Which credential a turn gets: the rule, and what is refused in its words. */
import t from 'tap'
import type { BatonError } from '../../src/errors.ts'
import type { Credential } from '../../src/store/store.ts'
import { credential } from '../contracts/store-credentials.ts'
import { newSession, openRequest, owner } from '../contracts/store-rows.ts'
import { createWorld } from './world.ts'

const world = await createWorld(t)

t.test('a turn takes the named one, the default, the only active one, then the environment', async (t) => {
  const { credentials, choice } = world.replica({ env: { OPENAI_API_KEY: 'sk-env-1' } })
  const owner = 'chooser'
  const scope = { owner, admin: false }
  const add = async (provider: string, api_key: string, fields: object = {}) =>
    (await credentials.create(owner, { provider, kind: 'api_key', api_key, ...fields })).id
  const pick = async (provider: string, id: string | null = null) => {
    const chosen = await choice.resolve({ owner, provider, credential_id: id }, provider)
    return { id: chosen.facts.id, secret: await chosen.secret() }
  }
  const refusal = async (provider: string, id: string | null = null) =>
    choice.resolve({ owner, provider, credential_id: id }, provider).then(
      () => 'chosen',
      (error: BatonError) => error.code,
    )

  t.same(await pick('openai'), { id: 'cred_env_openai', secret: { api_key: 'sk-env-1' } })
  t.equal(await refusal('anthropic'), 'no_credential')
  t.equal(await refusal('anthropic', 'cred_env_anthropic'), 'no_credential', 'a key that is gone')
  const a = await add('openai', 'sk-a')
  t.same(await pick('openai'), { id: a, secret: { api_key: 'sk-a' } }, 'the only active one')
  const b = await add('openai', 'sk-b')
  t.equal((await pick('openai')).id, 'cred_env_openai', 'two, and none the default')
  await credentials.update(scope, b, { default: true })
  t.equal((await pick('openai')).id, b, 'the default')
  t.equal((await pick('openai', a)).id, a, 'the named one')
  t.equal((await pick('openai', 'cred_env_openai')).id, 'cred_env_openai')
  await credentials.update(scope, b, { state: 'disabled' })
  await credentials.create('someone-else', { provider: 'openai', kind: 'api_key', api_key: 'sk-x' })
  t.equal((await pick('openai')).id, a, 'a disabled default gives way')
  const third = await add('openai', 'sk-e')
  t.equal((await pick('openai')).id, 'cred_env_openai', 'not to one of several')
  await credentials.delete(scope, third)
  t.equal(await refusal('openai', b), 'no_credential', 'a disabled one that is named does not')
  t.equal(await refusal('openai', 'cred_gone'), 'no_credential')
  const other = await add('anthropic', 'sk-c')
  t.equal((await pick('openai', other)).id, a, 'of another provider: the rule starts anew')
  const row = await world.store.credentials.get(scope, other)
  await world.store.credentials.fail(other, row?.version ?? 0, 'refresh_lost')
  t.equal(await refusal('anthropic'), 'credential_needs_reauth')
  t.equal(await refusal('anthropic', other), 'credential_needs_reauth')
  const ended = await add('openai', 'sk-d', { default: true })
  await world.store.credentials.fail(ended, 1, 'refresh_lost')
  t.equal(await refusal('openai'), 'credential_needs_reauth', 'a default is not passed over in silence')
  await credentials.delete(scope, ended)
  await credentials.delete(scope, b)
  await world.store.credentials.fail(a, 1, 'refresh_lost')
  t.equal((await pick('openai')).id, 'cred_env_openai', 'the only one, which is no default, gives way')
  await credentials.delete(scope, a)
  t.equal((await pick('openai')).id, 'cred_env_openai')
  const login = await credentials.create(owner, {
    provider: 'gemini',
    kind: 'oauth',
    access_token: 'at',
    refresh_token: 'rt',
    project_id: 'p',
  })
  t.match(await choice.resolve({ owner, provider: 'gemini', credential_id: null }, 'gemini'), {
    facts: { id: login.id, project_id: 'p' },
    kind: 'oauth',
    path: 'code_assist',
  })
  t.same((await pick('gemini')).secret, { access_token: 'at' }, 'no more than a request needs')
  const stranger = { owner: 'someone-else', provider: 'gemini', credential_id: login.id }
  t.equal(await choice.resolve(stranger, 'gemini').catch((error) => error.code), 'no_credential')
  const elsewhere = { owner, provider: 'openai', credential_id: 'cred_gone' }
  const switched = await choice.resolve(elsewhere, 'gemini')
  t.equal(switched.facts.id, login.id, 'for a turn of another provider the session’s does not count')
})

t.test('a turn that is opened without asking has the credential that the rule chooses', async (t) => {
  const { store } = world
  const provider = 'openai'
  const without = world.replica().choice
  const within = world.replica({ env: { OPENAI_API_KEY: 'sk-env-2' } }).choice
  const states = ['active', 'needs_reauth', 'disabled'] as const
  type State = Credential['state']
  type Case = { named: State | 'gone' | null; standing: State | null; beside: State | null }
  /** Of the one that the session names, of the default, of one beside it */
  const cases: Case[] = [
    ...[null, ...states].flatMap((standing) =>
      [null, ...states].map((beside) => ({ named: null, standing, beside })),
    ),
    ...[...states, 'gone' as const].flatMap((named) =>
      [null, 'active' as const].map((standing) => ({ named, standing, beside: null })),
    ),
  ]
  const outcomes = new Set<string>()
  for (const { named, standing, beside } of cases) {
    const scope = owner()
    const add = async (state: State | null, is_default = false) =>
      state && (await store.credentials.create(credential(scope, { provider, state, is_default }))).id
    await add(standing, true)
    await add(beside)
    const credential_id = named === 'gone' ? 'cred_gone' : await add(named)
    for (const choice of [without, within]) {
      const { id } = await newSession(store, scope)
      const session = await store.sessions.update(scope, id, { provider, credential_id })
      if (!session) throw new Error('the session is there')
      const [opened, chosen] = await Promise.all([
        store.turns.openSurely(scope, openRequest(id), choice.environment),
        choice.resolve(session, provider).then(
          ({ facts }) => facts.id,
          () => null,
        ),
      ])
      const start = opened?.kind === 'running' ? opened.start : null
      const known = start && (await choice.resolve(session, provider, start.credentials)).facts.id
      if (start) t.equal(known, chosen, JSON.stringify({ named, standing, beside }))
      outcomes.add(`${opened?.kind}, ${chosen ? 'chosen' : 'refused'}`)
    }
  }
  t.same([...outcomes].sort(), ['running, chosen', 'unsure, chosen', 'unsure, refused'])
})
