/** Which credential a turn gets: the rule, and its refusals. */
import t from 'tap'
import type { Credential } from '../../src/store/store.ts'
import { credential } from '../contracts/store-credentials.ts'
import { newSession, openRequest, owner } from '../contracts/store-rows.ts'
import { world } from './shared-world.ts'
import { refusal } from './world.ts'

t.test('a turn takes the named credential, the default, the only active or the environment’s', async (t) => {
  const { credentials, choice } = world.replica({ env: { OPENAI_API_KEY: 'sk-env-1' } })
  const owner = 'chooser'
  const scope = { owner, admin: false }
  const add = async (provider: string, api_key: string, fields: object = {}) =>
    (await credentials.create(owner, { provider, kind: 'api_key', api_key, ...fields })).id
  const pick = async (provider: string, id: string | null = null) => {
    const chosen = await choice.resolve({ owner, provider, credential_id: id }, provider)
    return { id: chosen.facts.id, secret: await chosen.secret() }
  }
  const refused = (provider: string, id: string | null = null) =>
    refusal(choice.resolve({ owner, provider, credential_id: id }, provider))

  t.same(await pick('openai'), { id: 'cred_env_openai', secret: { api_key: 'sk-env-1' } })
  t.match(await refused('anthropic'), {
    code: 'no_credential',
    message: /the default or the only one\. Add one with POST/,
    details: { provider: 'anthropic' },
  })
  t.match(
    await refused('anthropic', 'cred_env_anthropic'),
    { code: 'no_credential' },
    'a key of the environment that is gone',
  )
  const a = await add('openai', 'sk-a')
  t.same(await pick('openai'), { id: a, secret: { api_key: 'sk-a' } }, 'the only active one')
  const b = await add('openai', 'sk-b')
  t.equal((await pick('openai')).id, 'cred_env_openai', 'two active credentials, and no default')
  await credentials.update(scope, b, { default: true })
  t.equal((await pick('openai')).id, b, 'the default')
  t.equal((await pick('openai', a)).id, a, 'the named one')
  t.equal((await pick('openai', 'cred_env_openai')).id, 'cred_env_openai')
  await credentials.update(scope, b, { state: 'disabled' })
  await credentials.create('someone-else', { provider: 'openai', kind: 'api_key', api_key: 'sk-x' })
  t.equal((await pick('openai')).id, a, 'a disabled default gives way')
  const third = await add('openai', 'sk-e')
  t.equal(
    (await pick('openai')).id,
    'cred_env_openai',
    'a disabled default does not give way to one of several',
  )
  await credentials.delete(scope, third)
  t.match(
    await refused('openai', b),
    { code: 'no_credential', message: /is disabled/ },
    'a disabled credential that is named does not give way',
  )
  t.match(await refused('openai', 'cred_gone'), { code: 'no_credential', message: /does not exist any more/ })
  const env = { ANTHROPIC_API_KEY: 'sk-env-3', ANTHROPIC_WORKSPACE_ID: 'wrkspc_env' }
  const anthropic = { owner, provider: 'anthropic', credential_id: null }
  const placed = await world.replica({ env }).choice.resolve(anthropic, 'anthropic')
  t.match(placed, { kind: 'api_key' })
  t.strictSame(placed.facts, { id: 'cred_env_anthropic', workspace_id: 'wrkspc_env' })
  const other = await add('anthropic', 'sk-c', { workspace_id: 'wrkspc_1' })
  t.strictSame((await choice.resolve(anthropic, 'anthropic')).facts, { id: other, workspace_id: 'wrkspc_1' })
  t.equal((await pick('openai', other)).id, a, 'a named credential of another provider is passed over')
  const row = await world.store.credentials.get(scope, other)
  await world.store.credentials.fail(other, row?.version ?? 0, 'refresh_lost')
  t.match(await refused('anthropic'), { code: 'credential_needs_reauth' })
  t.match(await refused('anthropic', other), { code: 'credential_needs_reauth' })
  const ended = await add('openai', 'sk-d', { default: true })
  await world.store.credentials.fail(ended, 1, 'refresh_lost')
  t.match(
    await refused('openai'),
    { code: 'credential_needs_reauth' },
    'a default is not passed over in silence',
  )
  await credentials.delete(scope, ended)
  await credentials.delete(scope, b)
  await world.store.credentials.fail(a, 1, 'refresh_lost')
  t.equal((await pick('openai')).id, 'cred_env_openai', 'an only credential that is no default gives way')
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
  t.same(
    (await pick('gemini')).secret,
    { access_token: 'at' },
    'the secret holds no more than a request needs',
  )
  const given = { provider: 'gemini', kind: 'oauth' as const, access_token: 'at', path: 'public' as const }
  const { id: open } = await credentials.create(owner, given)
  t.match(await choice.resolve({ owner, provider: 'gemini', credential_id: open }, 'gemini'), {
    path: 'public',
  })
  await credentials.delete(scope, open)
  const stranger = { owner: 'someone-else', provider: 'gemini', credential_id: login.id }
  t.match(await refusal(choice.resolve(stranger, 'gemini')), { code: 'no_credential' })
  const elsewhere = { owner, provider: 'openai', credential_id: 'cred_gone' }
  const switched = await choice.resolve(elsewhere, 'gemini')
  t.equal(
    switched.facts.id,
    login.id,
    'for a turn of another provider the session’s credential does not count',
  )
})

t.test('a turn that the store opens at once has the credential that the rule chooses', async (t) => {
  const { store } = world
  const provider = 'openai'
  const unread = async () => {
    throw new Error('the rows are known')
  }
  const blind = { ...store, credentials: { ...store.credentials, get: unread, preferred: unread } }
  const choices = [{}, { OPENAI_API_KEY: 'sk-env-2' }].map((env) => ({
    choice: world.replica({ env }).choice,
    /** Of the rows that it is handed alone */
    known: world.replica({ env, store: blind }).choice,
  }))
  const states = ['active', 'needs_reauth', 'disabled'] as const
  type State = Credential['state']
  type Case = { named: State | 'gone' | null; standing: State | null; beside: State | null }
  /** The states of the credential that the session names, of the default, and of one beside it */
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
    for (const { choice, known } of choices) {
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
      if (start) {
        const { facts } = await known.resolve(session, provider, start.credentials)
        t.equal(facts.id, chosen, JSON.stringify({ named, standing, beside }))
      }
      outcomes.add(`${opened?.kind}, ${chosen ? 'chosen' : 'refused'}`)
    }
  }
  t.same([...outcomes].sort(), ['running, chosen', 'unsure, chosen', 'unsure, refused'])
})

t.test('no turn is opened for a login whose provider is switched off', async (t) => {
  const { store } = world
  const scope = owner()
  const { id } = await newSession(store, scope)
  await store.sessions.update(scope, id, { provider: 'openai' })
  await store.credentials.create(credential(scope, { provider: 'openai', kind: 'oauth' }))
  const opens = async (enabled: string) => {
    const { environment } = world.replica({ env: { BATON_ENABLE_OAUTH: enabled } }).choice
    return (await store.turns.openSurely(scope, openRequest(id), environment))?.kind
  }
  t.equal(await opens('anthropic'), 'unsure')
  t.equal(await opens('anthropic,openai'), 'running')
})
