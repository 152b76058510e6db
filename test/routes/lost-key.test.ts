/** What people are shown of a conversation whose encryption key is lost. */
import t from 'tap'
import type { Part } from '../../src/chat/message.ts'
import { sealParts } from '../../src/credentials/sealed-parts.ts'
import { createVault } from '../../src/credentials/vault.ts'
import type { PartsCodec } from '../../src/store/parts.ts'
import { resultOf, settlement } from '../contracts/store-ledger.ts'
import {
  COMPLETED,
  execution,
  message,
  openRequest,
  runningTurn,
  startTurn,
} from '../contracts/store-rows.ts'
import { freshStore } from '../store/fresh.ts'
import { cursorAt } from './fake-bus.ts'
import { gateway } from './gateway.ts'
import { user } from './gateway-on-store.ts'
import { scripted } from './served-streams.ts'

const key = (id: string, byte: number) => createVault([{ id, key: new Uint8Array(32).fill(byte) }])
const [lost, other] = [key('lost', 1), key('new', 2)]
let vault = lost
const own = () => sealParts(vault, (text) => text.includes('ghp_'))
const codec: PartsCodec = {
  seal: (...given) => own().seal(...given),
  open: (...given) => own().open(...given),
}
const store = await freshStore(t, { codec })
const { app, call, bus, close } = await gateway(store)
t.teardown(close)

/** A new session. What is said from here on is sealed under the key that `lose` makes unknown. */
async function begin() {
  vault = lost
  const { body } = await call('POST', '/v1/sessions', { provider: 'openai', model: 'm' })
  return body
}
const lose = () => {
  vault = other
}

const SECRET: Part = { type: 'text', text: 'It is ghp_0123456789.' }
const TOLD = { type: 'notice', text: /cannot be opened: .*encryption key lost/ }

t.test('a notice stands in place of a part whose key is lost, and the part can be replaced', async (t) => {
  const session = await begin()
  const url = `/v1/sessions/${session.id}/messages`
  const said = user('Mind it.')
  await call('POST', url, { messages: [said, { ...said, parts: [...said.parts, SECRET] }] })
  lose()
  const { status, body } = await call('GET', url)
  t.equal(status, 200)
  t.match(body.data, [{ parts: said.parts }, { parts: [said.parts[0], TOLD] }])
  await t.rejects(
    store.messages.after(session.id, 0),
    { name: 'Unreadable' },
    'a turn gets the whole history or none of it',
  )
  const changed = await call('PATCH', `${url}/${body.data[1].id}`, { parts: said.parts })
  t.match(changed, { status: 200, body: { role: 'user', parts: said.parts } })
  t.equal((await store.messages.after(session.id, 0)).length, 2)
})

t.test('a message with calls is deleted with their results, even if some cannot be opened', async (t) => {
  const session = await begin()
  const url = `/v1/sessions/${session.id}/messages`
  const asks = (call_id: string, secret = '') => ({
    type: 'tool_call',
    call_id,
    name: 'docs.get',
    arguments: { secret },
  })
  const found = (call_id: string, text: string) => ({
    type: 'tool_result',
    call_id,
    name: 'docs.get',
    content: [{ type: 'text', text }],
  })
  const secret = 'ghp_0123456789'
  const { body } = await call('POST', url, {
    messages: [
      { role: 'assistant', parts: [asks('call_1', secret), asks('call_2')] },
      { role: 'tool', parts: [found('call_1', secret), found('call_2', 'two'), found('call_3', secret)] },
      { role: 'assistant', parts: [asks('call_4')] },
      { role: 'tool', parts: [found('call_4', secret)] },
    ],
  })
  const [first, shared, last, alone] = body.data.map(({ id }: { id: string }) => id)
  lose()
  t.strictSame((await call('DELETE', `${url}/${last}`)).body, { deleted: [last, alone] })
  t.strictSame((await call('DELETE', `${url}/${first}`)).body, { deleted: [first] })
  const { body: left } = await call('GET', url)
  t.match(left.data, [{ id: shared, role: 'tool', parts: [TOLD] }])
  t.equal(left.data.length, 1)
  t.equal(left.data[0].parts.length, 1, 'the result of another call stays')
})

t.test('a turn whose key is lost is shown, by itself, in the list and in a gap', async (t) => {
  const session = await begin()
  const edit = { op: 'insert_after' as const, index: -1, message: { role: 'user' as const, parts: [SECRET] } }
  const request = openRequest(session.id, { turn: { input: [SECRET], context: [edit] } })
  const opened = await startTurn(store, { owner: 'local', admin: true }, request)
  const { turn, fence } = opened
  const answer = message('', { turn_id: turn.id, role: 'assistant', parts: [SECRET] })
  await store.turns.commit(fence, { turn_id: turn.id, messages: [answer], end: COMPLETED })
  lose()
  const shown = { input: [TOLD], context: [{ message: { parts: [TOLD] } }] }
  const messages = [
    { role: 'user', parts: [TOLD] },
    { role: 'assistant', parts: [TOLD] },
  ]
  const read = await call('GET', `/v1/turns/${turn.id}`)
  t.match(read, { status: 200, body: { ...shown, state: 'completed', messages } })
  t.match(await call('GET', `/v1/sessions/${session.id}/turns`), { status: 200, body: { data: [shown] } })

  scripted(async function* () {
    yield { gap: true, cursor: cursorAt(session.id, 1) }
  })({ bus })
  // Over a connection, which an injected request lacks: a stream sets a time limit on its own.
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  for (const path of [`turns/${turn.id}`, `sessions/${session.id}`]) {
    const text = await (await fetch(`${url}/v1/${path}/events`)).text()
    const { snapshot } = JSON.parse(/event: gap\ndata: (.*)/.exec(text)?.[1] ?? '{}')
    t.match(snapshot, { turn: shown, messages }, path)
  }
})

t.test('a call whose result is sealed with a lost key is in the ledger all the same', async (t) => {
  await begin()
  const { turn, fence } = await runningTurn(store, { owner: 'local', admin: true })
  const one = execution(turn.id)
  await store.turns.commit(fence, { turn_id: turn.id, executions: [one] })
  const result = {
    ...resultOf(one.call_id),
    content: [{ type: 'text' as const, text: 'It is ghp_0123456789.' }],
  }
  await store.executions.settle(fence, settlement(one, { result }))
  lose()
  const shown = { id: one.id, state: 'settled', outcome: 'ok' }
  t.match(await call('GET', '/v1/tool-executions'), { status: 200, body: { data: [shown] } })
  t.match(await call('GET', `/v1/tool-executions/${one.id}`), { status: 200, body: shown })
  await t.rejects(store.executions.ofTurn(turn.id), { name: 'Unreadable' }, 'a turn needs its results')
  const { call_id, tool: name } = one
  const content = [{ type: 'text', text: 'The result of this call cannot be read any more.' }]
  t.match(await store.executions.ofTurn(turn.id, 'told'), [
    { result: { type: 'tool_result', call_id, name, content, outcome: 'ok', is_error: false } },
  ])
})
