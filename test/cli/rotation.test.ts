/** A change of the encryption key: what it reaches, and that a gateway serves meanwhile. */
import { randomBytes } from 'node:crypto'
import t from 'tap'
import type { TurnEvent } from '../../src/chat/event.ts'
import type { Given } from '../../src/cli/command.ts'
import { KEY_COMMANDS } from '../../src/cli/keys.ts'
import { rotateKeys } from '../../src/credentials/key-rotation.ts'
import { sealParts } from '../../src/credentials/sealed-parts.ts'
import { createVault, secretContext, verifyKeys } from '../../src/credentials/vault.ts'
import type { Store } from '../../src/store/store.ts'
import { startToolServer } from '../e2e/tool-server.ts'
import { createOpenAiEmulator } from '../emulators/openai.ts'
import { ON_SERVERS, SERVERS } from '../given-servers.ts'
import { freshStore } from '../store/fresh.ts'
import { migratedDatabase } from '../store/migrated.ts'
import { wholeGateway } from '../whole-gateway.ts'
import { run } from './running.ts'

const OLD = { id: 'old', key: new Uint8Array(32).fill(1) }
const NEW = { id: 'new', key: new Uint8Array(32).fill(2) }
const ME = { owner: 'me', admin: false }
const SAID = 'the token is ghp_0123456789abcdefghijklmnopqrstuvwxyz'

/** Puts something that is sealed under the old key into every place that holds sealed data. */
async function fill(store: Store): Promise<void> {
  const vault = createVault([OLD])
  const common = { owner: 'me', name: null, state: 'active' as const, reason: null, is_default: false }
  for (const id of ['cred_1', 'cred_2']) {
    await store.credentials.create({
      ...common,
      id,
      provider: 'openai',
      kind: 'api_key',
      hint: '',
      facts: {},
      expires_at: null,
      secret: vault.seal(`secret of ${id}`, secretContext('me', id)),
    })
  }
  const place = { provider: 'openai', model: 'm', title: null, metadata: {}, settings: {} }
  await store.sessions.create({ ...place, id: 'ses_1', owner: 'me', credential_id: null, instructions: '' })
  const text = [{ type: 'text' as const, text: SAID }]
  // A part that only looks sealed stays as it is.
  const call = { type: 'tool_call' as const, call_id: 'call_0', name: 'f', arguments: LOOKALIKE }
  await store.messages.append(ME, 'ses_1', [
    { id: 'msg_1', turn_id: null, role: 'user', parts: text },
    { id: 'msg_2', turn_id: null, role: 'assistant', parts: [call, ...text] },
  ])
  const opened = await store.turns.open(ME, {
    turn: {
      id: 'turn_1',
      session_id: 'ses_1',
      input: text,
      context: [{ op: 'insert_after', index: -1, message: { role: 'user', parts: text } }],
      max_steps: 1,
      provider: null,
      model: null,
      idempotency_key: null,
      body_hash: '',
    },
    message: { id: 'msg_3' },
    on_busy: 'reject',
    queue_limit: 1,
    lease: { owner: 'me', seconds: 60 },
  })
  if (opened?.kind !== 'running') throw new Error('the turn does not run')
  const execution = (id: string, state: 'started' | 'awaiting_approval') => ({
    id,
    turn_id: 'turn_1',
    step: 0,
    call_id: `call_${id}`,
    tool: 'f',
    connector: null,
    tools_revision: 0,
    arguments: {},
    state,
    repeatable: false,
  })
  await store.turns.commit(opened.fence, {
    turn_id: 'turn_1',
    executions: [execution('exec_1', 'started'), execution('exec_2', 'awaiting_approval')],
    announce: [{ key: 'k', event: ANNOUNCED }],
  })
  const result = { type: 'tool_result' as const, call_id: 'call_exec_1', name: 'f', content: text }
  await store.executions.settle(opened.fence, {
    id: 'exec_1',
    outcome: 'ok',
    is_error: false,
    error: null,
    duration_ms: 1,
    bytes: 1,
    output: '***',
    structured: false,
    result: { ...result, is_error: false, outcome: 'ok' },
  })
  await store.executions.decide(ME, 'turn_1', 'call_exec_2', {
    decision: 'approve',
    reason: null,
    sealed_arguments: vault.seal(SAID, 'exec_2'),
    by: 'me',
  })
  await store.turns.commit(opened.fence, {
    turn_id: 'turn_1',
    end: { state: 'cancelled' },
  })
}
const LOOKALIKE = { type: 'sealed', sealed: 'AQNvbGQ=' }
const ANNOUNCED: TurnEvent = {
  type: 'content.delta',
  text: SAID,
  session_id: 'ses_1',
  turn_id: 'turn_1',
  step: 0,
  at: '2027-01-01T00:00:00.000Z',
}

t.test('after re-encryption the former key opens nothing and is not needed for anything', async (t) => {
  let vault = createVault([OLD])
  const keys = {
    seal: (plain: string, context: string) => vault.seal(plain, context),
    open: (sealed: Uint8Array, context: string) => vault.open(sealed, context),
  }
  const codec = sealParts(keys, (text) => text.includes('ghp_'))
  const store = await freshStore(t, { codec })
  await verifyKeys(store.settings, vault)
  await fill(store)

  /** Everything that was sealed, opened with the keys of the moment. */
  async function everything() {
    const rows = await store.sealed.secrets('', 100)
    const [turn, messages, executions, announced] = [
      await store.turns.get(ME, 'turn_1'),
      await store.messages.after('ses_1', 0),
      await store.executions.ofTurn('turn_1'),
      await store.turns.unannounced(10),
    ]
    return {
      credentials: rows.map(({ id, owner, secret }) => keys.open(secret, secretContext(owner, id))),
      messages: messages.map(({ parts }) => parts),
      turn: [turn?.input, turn?.context],
      results: executions.map(({ result }) => result?.content ?? null),
      edits: executions.map(({ id, approval }) =>
        approval?.sealed_arguments ? keys.open(approval.sealed_arguments, id) : null,
      ),
      announced: await Promise.all(announced.map(({ events }) => events())),
    }
  }
  const before = await everything()
  t.match(before, {
    credentials: ['secret of cred_1', 'secret of cred_2'],
    messages: [[{ text: SAID }], [{ arguments: LOOKALIKE }, { text: SAID }], [{ text: SAID }]],
    turn: [[{ text: SAID }], [{ message: { parts: [{ text: SAID }] } }]],
    results: [[{ text: SAID }], null],
    edits: [null, SAID],
    announced: [[{ event: { text: SAID } }]],
  })

  vault = createVault([NEW, OLD])
  // A renewal comes between the read and the write of one credential, once.
  let isDisturbed = false
  const busy = {
    ...store,
    sealed: {
      ...store.sealed,
      async putSecret(...args: Parameters<Store['sealed']['putSecret']>) {
        if (!isDisturbed) {
          isDisturbed = true
          const secret = createVault([OLD]).seal('renewed', secretContext('me', 'cred_1'))
          await store.credentials.rotate('cred_1', 1, { secret, hint: '', expires_at: null, facts: {} })
        }
        return store.sealed.putSecret(...args)
      },
    },
  }
  t.same(await rotateKeys(busy, vault), { resealed: 10, left: 0, unopened: [] })
  vault = createVault([NEW])
  await verifyKeys(store.settings, vault)
  t.same(await everything(), { ...before, credentials: ['renewed', 'secret of cred_2'] })
  t.same(
    await rotateKeys(store, createVault([NEW, OLD])),
    { resealed: 0, left: 0, unopened: [] },
    'nothing is left to do',
  )

  const never = { ...store, sealed: { ...store.sealed, putSecret: async () => false } }
  t.same(await rotateKeys(never, createVault([OLD, NEW])), {
    resealed: 8,
    left: 2,
    unopened: [],
  })
  await t.rejects(
    verifyKeys(store.settings, createVault([OLD])),
    /do not fit/,
    'the former key is still asked for',
  )
})

t.test('secrets are re-encrypted while a gateway serves with them', ON_SERVERS, async (t) => {
  const vendor = await createOpenAiEmulator()
  const tools = await startToolServer({ look: {} })
  t.teardown(() => Promise.all([vendor.close(), tools.close()]))
  const [old, next] = ['old', 'new'].map((id) => `${id}:${randomBytes(32).toString('base64')}`)
  const env = {
    ...SERVERS,
    DATABASE_URL: await migratedDatabase(t, SERVERS.DATABASE_URL),
    BATON_DRAIN_SECONDS: '0',
    BATON_OPENAI_BASE_URL: vendor.keyBaseUrl,
  }
  const serving = async (keys: string) => {
    const app = await wholeGateway(t, { ...env, BATON_ENCRYPTION_KEYS: keys })
    const call = async (method: 'GET' | 'POST', path: string, payload?: object) => {
      const headers = { host: 'localhost' }
      const answer = await app.http.inject({
        method,
        url: `/v1${path}`,
        headers,
        ...(payload && { payload }),
      })
      if (answer.statusCode >= 300) throw new Error(answer.body)
      return answer.json()
    }
    return { call, close: () => app.close() }
  }
  const before = await serving(old ?? '')
  const key = { provider: 'openai', kind: 'api_key', api_key: 'sk-test-openai' }
  const { id: credential_id } = await before.call('POST', '/credentials', key)
  const connector = {
    name: 'files',
    transport: 'streamable_http',
    url: tools.url,
    headers: { 'x-key': 'told' },
  }
  const { id } = await before.call('POST', '/connectors', connector)
  const chat = { provider: 'openai', model: 'gpt-5.6-sol', credential_id, connectors: ['files'] }
  const session = await before.call('POST', '/sessions', chat)
  await before.close()

  const both = { ...env, BATON_ENCRYPTION_KEYS: `${next},${old}` }
  const during = await serving(both.BATON_ENCRYPTION_KEYS)
  const turn = (input: string) => ({ input, stream: false })
  const said = during.call('POST', `/sessions/${session.id}/turns`, turn('call files__look with {}'))
  t.match(await run(both, 'keys rotate-encryption'), { code: 0 })
  t.match(await said, { state: 'completed' })
  await during.close()

  const after = await serving(next ?? '')
  t.match(await after.call('POST', `/sessions/${session.id}/turns`, turn('say hello')), {
    output_text: 'hello',
  })
  t.match(await after.call('POST', `/connectors/${id}/test`), { ok: true })
  t.match(await after.call('GET', `/connectors/${id}`), { header_names: ['x-key'] })
  await after.close()
  await t.rejects(serving(old ?? ''), /do not fit/)
})

t.test('the advice after a rotation names its keys, and the secrets that do not open', async (t) => {
  const command = KEY_COMMANDS.find(({ name }) => name === 'keys rotate-encryption')
  const told = async (others: string[], unopened: string[] = []) => {
    let words = ''
    const rotateEncryption = async () => ({ resealed: 1, left: 0, unopened, key: 'k1', others })
    const given = {
      access: async () => ({ rotateEncryption }),
      flag: () => false,
      io: { note: (text: string) => (words += text) },
    }
    const code = await command?.run(given as unknown as Given)
    return { code, words }
  }
  t.match(await told([]), { code: 0, words: /all are under k1, .* none to take out/ })
  t.match(await told(['k2']), {
    code: 0,
    words: /first key, k1\. If k2 is to stay instead.* then take k2 out/,
  })
  t.match(await told(['k2'], ['credential cred_1 of me: why']), {
    code: 1,
    words: /all others are under .*\nThese do not open .*\n {2}credential cred_1 of me: why$/s,
  })
})
