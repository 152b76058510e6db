/** What every store does with sessions. */
import type { Test } from 'tap'
import { BatonError } from '../../src/errors.ts'
import type { Store } from '../../src/store/store.ts'
import {
  ADMIN,
  allPages,
  endTurn,
  execution,
  id,
  newSession,
  openRequest,
  owner,
  rejection,
  runningTurn,
  STRANGER,
  startTurn,
  step,
} from './store-rows.ts'

/** Values that JSON can hold and PostgreSQL's text cannot, with keys in an order that no database would choose. */
const ODD = { zebra: 'nul \0 inside', a: 'lone \ud800 surrogate', m: { y: 1, x: [1, null, '\u2028 😀'] } }

export async function sessionContract(t: Test, store: Store): Promise<void> {
  await t.test('a session is stored as it was given and shown to its owner and admins', async (t) => {
    const scope = owner()
    const given = {
      id: id('ses'),
      owner: scope.owner,
      provider: 'acme',
      model: 'acme-1',
      credential_id: 'cred_1',
      instructions: 'Speak “plainly”.\n',
      settings: { temperature: 0.5, max_output_tokens: 7 },
      title: 'A title',
      metadata: ODD,
    }
    const made = await store.sessions.create(given)
    const { created_at, updated_at, ...rest } = made
    t.strictSame(rest, {
      ...given,
      tools_revision: 0,
      active_turn_id: null,
      usage: { input_tokens: 0, output_tokens: 0, reasoning_tokens: 0, cached_tokens: 0 },
    })
    t.match(
      [created_at, updated_at],
      [/^\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z$/, /Z$/],
      'times are RFC 3339 in UTC',
    )
    t.equal(JSON.stringify(made.metadata), JSON.stringify(ODD), 'keys keep their order')
    t.strictSame(await store.sessions.get(scope, given.id), made)
    t.strictSame(await store.sessions.get(ADMIN, given.id), made)
    t.equal(await store.sessions.get(STRANGER, given.id), null)
    t.equal(await store.sessions.get(scope, 'ses_no\0where'), null, 'an id that cannot exist is not found')
  })

  await t.test('text columns replace characters that they cannot hold by U+FFFD', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    const patched = await store.sessions.update(scope, session, { title: 'a\0b\ud800c', instructions: '\0' })
    t.match(patched, { title: 'a\ufffdb\ufffdc', instructions: '\ufffd' })
  })

  await t.test('a patch changes only what it names, for the owner and admins', async (t) => {
    const scope = owner()
    const made = await newSession(store, scope)
    const patch = { provider: 'other', model: 'o-1', credential_id: 'cred_2', metadata: { b: 1, a: 2 } }
    const changed = await store.sessions.update(scope, made.id, patch)
    t.strictSame({ ...changed, updated_at: '' }, { ...made, ...patch, updated_at: '' })
    t.equal((await store.sessions.update(scope, made.id, { credential_id: null }))?.credential_id, null)
    t.equal(await store.sessions.update(STRANGER, made.id, { title: 'stolen' }), null)
    t.equal((await store.sessions.update(ADMIN, made.id, { title: 'by an admin' }))?.title, 'by an admin')
    const { provider } = made
    t.equal(
      await store.sessions.update(scope, made.id, { title: 'late' }, provider),
      null,
      'the session is of another provider by now',
    )
    t.match(await store.sessions.update(scope, made.id, { provider }, 'other'), { provider })
  })

  await t.test('a turn keeps the session’s settings of its beginning, whatever changes since', async (t) => {
    const scope = owner()
    const { turn, fence } = await runningTurn(store, scope)
    const queued = openRequest(turn.session_id, { on_busy: 'enqueue' })
    await store.turns.open(scope, queued)
    const beside = await newSession(store, scope)
    await store.sessions.update(scope, beside.id, { model: 'acme-2' })
    const other = openRequest(beside.id)
    const { fence: besides } = await startTurn(store, scope, other)
    const before = await store.sessions.ofTurn(turn.id)
    t.strictSame(before, await store.sessions.get(scope, turn.session_id))
    await store.sessions.update(scope, turn.session_id, { title: 'new' })
    const first = { provider: 'other', model: 'o-1', credential_id: 'cred_9', instructions: 'Latin.' }
    await store.sessions.update(scope, turn.session_id, first)
    await store.sessions.update(scope, turn.session_id, { model: 'o-2', settings: { top_p: 1 } })
    const kept = await store.sessions.ofTurn(turn.id)
    t.strictSame({ ...kept, updated_at: '' }, { ...before, title: 'new', updated_at: '' })
    t.match(await store.sessions.get(scope, turn.session_id), {
      ...first,
      model: 'o-2',
      settings: { top_p: 1 },
    })
    t.match(
      await store.sessions.ofTurn(queued.turn.id),
      { ...first, model: 'o-2' },
      'a turn that has not begun takes the newest settings',
    )
    const now = await store.sessions.get(scope, beside.id)
    t.strictSame(
      await store.sessions.ofTurn(other.turn.id),
      now,
      'another session’s turn has its own settings',
    )
    await store.turns.commit(besides, { turn_id: other.turn.id, state: 'awaiting_input' })
    await store.sessions.update(scope, beside.id, { model: 'acme-3' })
    t.match(
      await store.sessions.ofTurn(other.turn.id),
      { model: 'acme-2' },
      'a turn that waits keeps its settings',
    )
    await endTurn(store, fence, turn.id)
    t.equal(await store.sessions.ofTurn('turn_none'), null)
  })

  await t.test('sessions are listed newest first, in pages, to their owner and to admins', async (t) => {
    const scope = owner()
    const mine: string[] = []
    for (let i = 0; i < 7; i++) mine.unshift((await newSession(store, scope)).id)
    const { rows, pages } = await allPages((page) => store.sessions.list(scope, page), 3)
    t.strictSame([rows.map((row) => row.id), pages], [mine, 3])
    t.equal(
      (await store.sessions.list(scope, { limit: 7 })).next_cursor,
      null,
      'a full last page has no cursor',
    )
    t.strictSame(await store.sessions.list(STRANGER, { limit: 5 }), { data: [], next_cursor: null })
    const seen = await allPages((page) => store.sessions.list(ADMIN, page), 50)
    t.ok(mine.every((session) => seen.rows.some((row) => row.id === session)))
  })

  await t.test(
    'a page of long sessions ends before it is too long, and has at least one session',
    async (t) => {
      const scope = owner()
      const made: string[] = []
      for (const length of [100, 9000, 2000, 2000, 2000]) {
        const { id } = await newSession(store, scope)
        await store.sessions.update(scope, id, { instructions: 'x'.repeat(length) })
        made.unshift(id)
      }
      const pages: string[][] = []
      await allPages(async (page) => {
        const read = await store.sessions.list(scope, { ...page, bytes: 4000 })
        pages.push(read.data.map(({ id }) => id))
        return read
      }, 100)
      t.strictSame(pages, [made.slice(0, 2), made.slice(2, 3), made.slice(3, 4), made.slice(4)])
    },
  )

  await t.test('a cursor that the list did not give out is refused', async (t) => {
    const scope = owner()
    const { id: session } = await newSession(store, scope)
    await newSession(store, scope)
    const cursor = (await store.sessions.list(scope, { limit: 1 })).next_cursor ?? ''
    const made = (words: string) => Buffer.from(words).toString('base64url')
    const read: [string, () => Promise<unknown>][] = [
      ['no base64url', () => store.sessions.list(scope, { limit: 1, cursor: '%%%' })],
      ['empty', () => store.sessions.list(scope, { limit: 1, cursor: '' })],
      ['not canonical', () => store.sessions.list(scope, { limit: 1, cursor: `${cursor}==` })],
      ['of another list', () => store.turns.list(scope, session, { limit: 1, cursor })],
      ['of another list', () => store.messages.list(scope, session, { limit: 1, cursor })],
      ['with a NUL', () => store.keys.list(scope, { limit: 1, cursor: made('keys a\0') })],
      ['no number', () => store.messages.list(scope, session, { limit: 1, cursor: made('messages x') })],
      ['with more', () => store.sessions.list(scope, { limit: 1, cursor: made(`sessions ${session} x`) })],
    ]
    for (const [what, list] of read) {
      const thrown = await rejection(list())
      t.ok(
        thrown instanceof BatonError && thrown.code === 'invalid_request' && thrown.param === 'cursor',
        what,
      )
    }
  })

  await t.test(
    'deleting a session deletes all that is its own, and is refused before its turn has ended',
    async (t) => {
      const scope = owner()
      const { session, turn, fence } = await runningTurn(store, scope)
      t.equal(await store.sessions.delete(scope, session.id), 'busy')
      await endTurn(store, fence, turn.id)
      t.equal(await store.sessions.delete(STRANGER, session.id), null)
      t.equal(await store.sessions.delete(scope, session.id), 'deleted')
      t.equal(await store.sessions.delete(scope, session.id), null)
      t.equal(await store.turns.get(scope, turn.id), null)
      t.strictSame(await store.messages.after(session.id, 0), [])
      t.equal(await store.messages.list(scope, session.id, { limit: 5 }), null)
    },
  )

  await t.test('deleting a session leaves another session whole', async (t) => {
    const scope = owner()
    const [gone, kept] = [await runningTurn(store, scope), await runningTurn(store, scope)]
    for (const { turn, fence } of [gone, kept]) {
      await store.turns.commit(fence, { turn_id: turn.id, step: step(0), executions: [execution(turn.id)] })
      await endTurn(store, fence, turn.id)
    }
    const { session, turn } = kept
    const read = async () => [
      await store.sessions.get(scope, session.id),
      await store.registry.get(session.id),
      await store.messages.after(session.id, 0),
      await store.turns.get(scope, turn.id),
      await store.executions.ofTurn(turn.id),
    ]
    const before = await read()
    t.equal(await store.sessions.delete(scope, gone.session.id), 'deleted')
    t.strictSame(await read(), before)
    t.strictSame(await store.executions.ofTurn(gone.turn.id), [])
  })
}
