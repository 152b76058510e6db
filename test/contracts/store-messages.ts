/** What every store does with the messages of a session. */
import type { Test } from 'tap'
import type { Message, Part } from '../../src/chat/message.ts'
import type { Store } from '../../src/store/store.ts'
import {
  ADMIN,
  allPages,
  endTurn,
  message,
  newSession,
  openRequest,
  owner,
  runningTurn,
  STRANGER,
  startTurn,
  text,
} from './store-rows.ts'

const call = (call_id: string): Part => ({
  type: 'tool_call',
  call_id,
  name: 'x.y',
  arguments: { b: 1, a: '\0' },
})
const result = (call_id: string): Part => ({
  type: 'tool_result',
  call_id,
  name: 'x.y',
  content: [{ type: 'text', text: '\0\ud800' }],
  is_error: false,
  outcome: 'ok',
})
const ids = (messages: readonly Message[] | null | 'busy' | undefined) =>
  Array.isArray(messages) ? messages.map((one: Message) => one.id) : messages

export async function messageContract(t: Test, store: Store): Promise<void> {
  await t.test('appended messages come back in order, exactly as they were given', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const given = [
      message('one \0 two'),
      message('', { role: 'assistant', parts: [call('call_1')], incomplete: true }),
      message('', { role: 'tool', parts: [result('call_1')] }),
    ]
    const stored = await store.messages.append(scope, session, given)
    t.ok(Array.isArray(stored))
    const read = await store.messages.after(session, 0)
    t.strictSame(read, stored, '`append` returns the messages as they are read')
    t.equal(JSON.stringify(read.map((one) => one.parts)), JSON.stringify(given.map((one) => one.parts)))
    t.strictSame(
      read.map((one) => [one.seq, one.session_id, one.turn_id, one.incomplete]),
      [
        [1, session, null, undefined],
        [2, session, null, true],
        [3, session, null, undefined],
      ],
    )
    t.strictSame(ids(await store.messages.after(session, 2)), [given[2]?.id])
    t.strictSame(await store.messages.newest(session, 0), read[2])
    t.equal(await store.messages.newest(session, 3), null)
    t.strictSame(await store.messages.append(scope, session, []), [])
  })

  await t.test('a page of messages is ascending and shown to the owner and admins', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    t.strictSame(await store.messages.list(scope, session, { limit: 2 }), { data: [], next_cursor: null })
    await store.messages.append(
      scope,
      session,
      Array.from({ length: 5 }, (_, i) => message(`${i}`)),
    )
    const { rows, pages } = await allPages((page) => store.messages.list(scope, session, page), 2)
    t.strictSame([rows.map((row) => row.seq), pages], [[1, 2, 3, 4, 5], 3])
    t.equal(await store.messages.list(STRANGER, session, { limit: 2 }), null)
    t.equal((await store.messages.list(ADMIN, session, { limit: 9 }))?.data.length, 5)
    t.equal(await store.messages.append(STRANGER, session, [message('x')]), null)
    t.equal(await store.messages.append(scope, 'ses_none', [message('x')]), null)
  })

  await t.test('a page of large messages ends before it is too long, and has at least one', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const lengths = [2000, 2000, 2000, 9000, 100]
    await store.messages.append(
      scope,
      session,
      lengths.map((length) => message('x'.repeat(length))),
    )
    const pages: number[][] = []
    await allPages(async (page) => {
      const read = await store.messages.list(scope, session, { ...page, bytes: 6400 })
      pages.push(read?.data.map(({ seq }) => seq) ?? [])
      return read
    }, 100)
    t.strictSame(pages, [[1, 2], [3], [4], [5]])
  })

  await t.test('a message is replaced in its place', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const [first, second] = [message('a', { incomplete: true }), message('b')]
    await store.messages.append(scope, session, [first, second])
    const changed = await store.messages.replace(scope, session, first.id, {
      role: 'system',
      parts: text('new'),
    })
    t.match(changed, { id: first.id, seq: 1, role: 'system', parts: text('new') })
    t.notOk(
      typeof changed === 'object' && changed?.incomplete,
      'a message that a person wrote is not incomplete',
    )
    t.strictSame(await store.messages.after(session, 0).then((all) => all[0]), changed)
    t.strictSame(await store.messages.get(scope, session, first.id), changed)
    t.equal(await store.messages.get(STRANGER, session, first.id), null)
    const other = await newSession(store, scope)
    t.equal(await store.messages.get(scope, other.id, first.id), null)
    const attempt = { role: 'user' as const, parts: text('no') }
    t.equal(await store.messages.replace(STRANGER, session, first.id, attempt), null)
    t.equal(
      await store.messages.replace(scope, other.id, first.id, attempt),
      null,
      'the message is not found through another session',
    )
    t.equal(await store.messages.replace(scope, session, 'msg_none', attempt), null)
    t.strictSame(await store.sessions.get(scope, other.id), other, 'another session stays as it is')
  })

  await t.test('a call and a result that came by replacing messages are deleted together', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const said = [message('I see', { role: 'assistant' }), message('so it is', { role: 'assistant' })]
    await store.messages.append(scope, session, said)
    const [first = '', second = ''] = said.map((one) => one.id)
    await store.messages.replace(scope, session, first, { role: 'assistant', parts: [call('call_1')] })
    await store.messages.replace(scope, session, second, { role: 'tool', parts: [result('call_1')] })
    t.strictSame(await store.messages.delete(scope, session, first), [first, second])
  })

  await t.test('deleting a message with tool calls deletes their results, too', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const user = message('question')
    const calls = message('', { role: 'assistant', parts: [call('call_1'), call('call_2')] })
    const third = message('', { role: 'assistant', parts: [call('call_3')] })
    const alone = message('', { role: 'tool', parts: [result('call_1')] })
    const shared = message('', { role: 'tool', parts: ['call_2', 'call_3', 'call_4'].map(result) })
    const answer = message('answer', { role: 'assistant' })
    await store.messages.append(scope, session, [user, calls, third, alone, shared, answer])
    t.equal(await store.messages.delete(STRANGER, session, calls.id), null)
    t.equal(await store.messages.delete(scope, session, 'msg_none'), null)
    const { id: other } = await newSession(store, scope)
    t.equal(
      await store.messages.delete(scope, other, calls.id),
      null,
      'the message is not found through another session',
    )
    t.strictSame(
      new Set(await store.messages.delete(scope, session, calls.id)),
      new Set([calls.id, alone.id]),
    )
    const rest = await store.messages.after(session, 0)
    t.strictSame(ids(rest), [user.id, third.id, shared.id, answer.id])
    t.strictSame(rest[2]?.parts, ['call_3', 'call_4'].map(result), 'results of other calls stay')
    t.strictSame(await store.messages.delete(scope, session, third.id), [third.id])
    const left = await store.messages.after(session, 1)
    t.strictSame([ids(left), left[0]?.parts], [[shared.id, answer.id], [result('call_4')]])
    t.strictSame(await store.messages.delete(scope, session, shared.id), [shared.id])
    const [later] = (await store.messages.append(scope, session, [message('later')])) as Message[]
    t.equal(later?.seq, 7, 'a seq is never given twice')
  })

  await t.test('of calls with the same id each has the result that follows it', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const again = () => [
      message('', { role: 'assistant', parts: [call('call_1')] }),
      message('', { role: 'tool', parts: [result('call_1')] }),
    ]
    const said = [...again(), ...again()]
    await store.messages.append(scope, session, said)
    const [first = '', second, ...rest] = said.map(({ id }) => id)
    t.strictSame(await store.messages.delete(scope, session, first), [first, second])
    t.strictSame(ids(await store.messages.after(session, 0)), rest)
  })

  await t.test('a call whose id no text column can hold is deleted with its result', async (t) => {
    const scope = owner()
    for (const id of ['call_\0', 'call_\ud800']) {
      const { id: session } = await newSession(store, scope)
      const said = [
        message('', { role: 'assistant', parts: [call(id)] }),
        message('', { role: 'tool', parts: [result(id)] }),
      ]
      await store.messages.append(scope, session, said)
      const all = said.map((one) => one.id)
      t.strictSame(await store.messages.delete(scope, session, all[0] ?? ''), all)
    }
  })

  await t.test('history cannot be edited before the running turn has ended', async (t) => {
    const scope = owner()
    const { session, turn, fence, message: input } = await runningTurn(store, scope)
    const edit = { role: 'user' as const, parts: text('edited') }
    t.equal(await store.messages.append(scope, session.id, [message('x')]), 'busy')
    t.equal(await store.messages.replace(scope, session.id, input.id, edit), 'busy')
    t.equal(await store.messages.delete(scope, session.id, input.id), 'busy')
    t.equal(await store.messages.replace(scope, session.id, 'msg_none', edit), null)
    await endTurn(store, fence, turn.id)
    t.strictSame(await store.messages.delete(scope, session.id, input.id), [input.id])
  })

  await t.test('parallel writers never get the same seq', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    await Promise.all(
      Array.from({ length: 10 }, () => store.messages.append(scope, session, [message('a'), message('b')])),
    )
    const all = await store.messages.after(session, 0)
    t.strictSame(
      all.map((one) => one.seq),
      Array.from({ length: 20 }, (_, i) => i + 1),
    )
    t.ok(
      all.every((one, i) => i % 2 === 1 || (one.parts[0] as { text: string }).text === 'a'),
      'the two messages of each append stay together',
    )
  })

  await t.test('a turn’s messages are its input and its answers', async (t) => {
    const scope = owner()
    const { session, turn, fence, message: input } = await runningTurn(store, scope)
    const own = message('answer', { role: 'assistant', turn_id: turn.id })
    await store.turns.commit(fence, { turn_id: turn.id, messages: [own] })
    await endTurn(store, fence, turn.id)
    await startTurn(store, scope, openRequest(session.id))
    t.strictSame(ids(await store.messages.ofTurn(turn.id)), [input.id, own.id])
  })
}
