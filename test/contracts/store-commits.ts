/** What a running turn reads and commits, and whose writes count. */
import type { Test } from 'tap'
import { BatonError } from '../../src/errors.ts'
import { type Fence, StaleOwner, type Step, type Store } from '../../src/store/store.ts'
import { NONE } from '../patterns.ts'
import {
  announced,
  COMPLETED,
  connector,
  endTurn,
  execution,
  id,
  LAPSED,
  LEASE,
  message,
  newSession,
  openRequest,
  owner,
  recoverAll,
  rejection,
  runningTurn,
  startTurn,
  step,
  unsaidOf,
  usage,
} from './store-rows.ts'

export async function commitContract(t: Test, store: Store): Promise<void> {
  await t.test('an owner reads and commits its turn', (t) => stepContract(t, store))
  await t.test('only a turn’s owner writes, and others take over', (t) => fencingContract(t, store))
}

async function stepContract(t: Test, store: Store): Promise<void> {
  await t.test(
    'a step’s connectors have the same mark as at the turn’s start until one is changed',
    async (t) => {
      const scope = owner()
      const session = await newSession(store, scope)
      for (const name of ['b', 'a']) {
        const made = await store.connectors.create(connector(scope, name))
        if (made !== 'name_taken') await store.connectors.bind(session.id, made.id, null)
      }
      const opened = await startTurn(store, scope, openRequest(session.id))
      const bound = async () => (await store.turns.readStep(opened.fence, opened.turn.id, 0, 0)).bound
      const before = await bound()
      t.equal(opened.start?.bound, before)
      const [first] = opened.start?.bindings ?? []
      if (!first) return t.fail('no connector is bound')
      await store.connectors.update(scope, first.connector, { require_approval: 'always' })
      t.not(await bound(), before)
    },
  )

  await t.test('a commit of calls returns the current revision of the session’s tools', async (t) => {
    const { session, turn, fence } = await runningTurn(store, owner())
    await store.registry.put([{ session_id: session.id, expected: 0, tools: [] }])
    const executions = [execution(turn.id)]
    const messages = [message('calls', { turn_id: turn.id, role: 'assistant' })]
    const committed = await store.turns.commit(fence, { turn_id: turn.id, messages, executions })
    t.match(committed, { messages: [{ turn_id: turn.id }], tools_revision: 1 })
    const stale = { ...fence, epoch: fence.epoch + 1 }
    t.ok((await rejection(store.turns.commit(stale, { turn_id: turn.id, executions }))) instanceof StaleOwner)
  })

  await t.test('a step reads new messages, the registry if it changed, and a requested cancel', async (t) => {
    const scope = owner()
    const { session, turn, fence, message: input } = await runningTurn(store, scope)
    const first = await store.turns.readStep(fence, turn.id, 0, -1)
    t.match(first, {
      messages: [input],
      registry: { session_id: session.id, revision: 0, tools: NONE },
      cancel_requested: false,
    })
    t.strictSame(await store.turns.readStep(fence, turn.id, input.seq, 0), {
      messages: [],
      registry: null,
      cancel_requested: false,
      bound: '',
    })
    await store.registry.put([{ session_id: session.id, expected: 0, tools: [] }])
    await store.turns.requestCancel(scope, turn.id)
    t.match(await store.turns.readStep(fence, turn.id, 1, 0), {
      registry: { revision: 1 },
      cancel_requested: true,
    })
  })

  await t.test('a commit writes step, messages and turn together', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const answer = message('\0', { role: 'assistant', turn_id: turn.id, incomplete: true })
    const { messages: stored } = await store.turns.commit(fence, {
      turn_id: turn.id,
      step: step(0),
      messages: [answer],
      attempt: 2,
      restarts: 1,
    })
    t.match(stored, [{ ...answer, session_id: session.id, seq: 2, created_at: /Z$/ }])
    t.strictSame(await store.messages.after(session.id, 1), stored)
    t.match(await store.turns.get(scope, turn.id), {
      steps: [step(0)],
      attempt: 2,
      restarts: 1,
      state: 'running',
    })
    const error = {
      code: 'upstream_rejected' as const,
      message: 'no \0',
      param: null,
      details: { b: 1, a: 2 },
    }
    t.strictSame(
      await store.turns.commit(fence, {
        turn_id: turn.id,
        end: { state: 'failed', error },
      }),
      { messages: [], has_queued: false },
    )
    t.match(await store.turns.get(scope, turn.id), {
      state: 'failed',
      finish_reason: null,
      error,
      ended_at: /Z$/,
    })
    t.match(await store.turns.standing(scope, turn.id), { state: 'failed', ended_at: /Z$/, steps: [0] })
    t.equal((await store.sessions.get(scope, session.id))?.active_turn_id, null)
  })

  await t.test('a commit that its owner makes again is written once', async (t) => {
    const { session, turn, fence } = await runningTurn(store, owner())
    const said = message('answer', { role: 'assistant', turn_id: turn.id })
    const write = () => store.turns.commit(fence, { turn_id: turn.id, step: step(0), messages: [said] })
    const first = await write()
    t.strictSame(await write(), first)
    t.strictSame(await store.messages.after(session.id, 1), first.messages)
    await endTurn(store, fence, turn.id)
  })

  await t.test('an owner may commit its end or wait again, until another owner has the turn', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const park = () => store.turns.commit(fence, { turn_id: turn.id, state: 'awaiting_input' })
    await park()
    t.strictSame(await park(), { messages: [], has_queued: false })
    const resumed = await store.turns.resumeAwaiting(turn.id, LEASE)
    if (!resumed) return t.fail('the turn was not resumed')
    t.ok((await rejection(park())) instanceof StaleOwner, 'another owner has the turn')
    await store.turns.commit(resumed.fence, { turn_id: turn.id, state: 'awaiting_input' })
    t.ok((await rejection(park())) instanceof StaleOwner, 'another owner committed the wait')
    const again = await store.turns.resumeAwaiting(turn.id, LEASE)
    if (!again) return t.fail('the turn was not resumed')
    await store.turns.open(scope, openRequest(session.id, { on_busy: 'enqueue' }))
    const end = () => endTurn(store, again.fence, turn.id)
    await end()
    t.strictSame(await end(), { messages: [], has_queued: true })
    await store.turns.startQueued(session.id, { id: id('msg') }, LEASE)
    t.ok((await rejection(end())) instanceof StaleOwner, 'the session’s next turn runs')
  })

  await t.test('usage adds up in turn and session, and a step written twice counts once', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const other = await runningTurn(store, scope)
    await store.turns.commit(other.fence, { turn_id: other.turn.id, step: step(1) })
    const others = async () => [
      await store.turns.get(scope, other.turn.id),
      (await store.sessions.get(scope, other.session.id))?.usage,
    ]
    const before = await others()
    const put = (one: Step) => store.turns.commit(fence, { turn_id: turn.id, step: one })
    await put(step(0, { usage: usage(10, 5) }))
    await put(step(1, { usage: usage(100), ended_at: null, finish_reason: null }))
    await put(step(1, { usage: usage(30, 7) }))
    for (let i = 0; i < 2; i++) await put(step(1, { attempt: 2, usage: usage(1, 1), discarded: true }))
    const sum = { input_tokens: 41, output_tokens: 13, reasoning_tokens: 3, cached_tokens: 6 }
    const read = await store.turns.get(scope, turn.id)
    t.strictSame(read?.usage, sum)
    t.strictSame(read?.steps, [
      step(0),
      step(1, { usage: usage(30, 7) }),
      step(1, { attempt: 2, usage: usage(1, 1), discarded: true }),
    ])
    t.strictSame((await store.sessions.get(scope, session.id))?.usage, sum)
    t.strictSame(await others(), before, 'another turn’s usage stays as it is')
    await endTurn(store, fence, turn.id)
    const next = await startTurn(store, scope, openRequest(session.id))
    await store.turns.commit(next.fence, { turn_id: next.turn.id, step: step(0, { usage: usage(1) }) })
    t.equal((await store.sessions.get(scope, session.id))?.usage.input_tokens, 42)
  })

  await t.test('announcements of the last commit are kept until they are forgotten', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    const [one, two] = [announced(turn.id, session.id, 'one \0'), announced(turn.id, session.id, 'two')]
    await store.turns.commit(fence, { turn_id: turn.id, announce: [one] })
    const unsaid = () => unsaidOf(store, turn.id)
    t.equal(await unsaid(), null, 'announcements of a running turn are left to its owner')
    await store.turns.commit(fence, { turn_id: turn.id, attempt: 2, announce: [one, two] })
    await store.turns.commit(fence, { turn_id: turn.id, end: COMPLETED })
    const left = { session_id: session.id, turn_id: turn.id, epoch: null, events: [one, two] }
    t.strictSame(await unsaid(), left)
    const others = await store.turns.unannounced(1000, [turn.id])
    t.notOk(others.some(({ turn_id }) => turn_id === turn.id))
    const listed = (await store.turns.unannounced(1000)).find(({ turn_id }) => turn_id === turn.id)
    await store.turns.forgetAnnouncements([turn.id], null)
    t.equal(await unsaid(), null)
    t.strictSame(
      await listed?.events(),
      [],
      'the list itself has no events: those of many turns may be gigabytes',
    )
  })

  await t.test('announcements are not forgotten by a note about an earlier wait', async (t) => {
    const { session, turn, fence } = await runningTurn(store, owner())
    const wait = ({ epoch }: Fence) => announced(turn.id, session.id, `wait ${epoch}`)
    const unsaid = async () => (await unsaidOf(store, turn.id))?.events
    const park = (of: Fence) =>
      store.turns.commit(of, { turn_id: turn.id, state: 'awaiting_input', announce: [wait(of)] })
    await park(fence)
    t.equal((await unsaidOf(store, turn.id))?.epoch, fence.epoch)
    const again = (await store.turns.resumeAwaiting(turn.id, LEASE))?.fence
    if (!again) return t.fail('the turn was not resumed')
    await store.turns.forgetAnnouncements([turn.id], fence.epoch)
    await park(again)
    await store.turns.forgetAnnouncements([turn.id], fence.epoch)
    t.strictSame(await unsaid(), [wait(again)])
    await store.turns.forgetAnnouncements([turn.id], null)
    t.strictSame(await unsaid(), [wait(again)], 'a note about the end does not count before the end')
    await store.turns.forgetAnnouncements([turn.id], again.epoch)
    t.equal(await unsaid(), undefined)
    const last = (await store.turns.resumeAwaiting(turn.id, LEASE))?.fence
    if (!last) return t.fail('the turn was not resumed')
    const end = announced(turn.id, session.id, 'end')
    await store.turns.commit(last, { turn_id: turn.id, end: COMPLETED, announce: [end] })
    await store.turns.forgetAnnouncements([turn.id], again.epoch)
    t.strictSame(await unsaid(), [end])
    await store.turns.forgetAnnouncements([turn.id], null)
  })
}

async function fencingContract(t: Test, store: Store): Promise<void> {
  await t.test(
    'a heartbeat tells of a cancel, and the lease of an owner that ignores it can be broken',
    async (t) => {
      const scope = owner()
      const { session, turn, fence } = await runningTurn(store, scope, LEASE)
      t.equal(
        await store.turns.breakLease(turn.id, fence.epoch),
        false,
        'nobody has asked to cancel the turn',
      )
      await store.turns.requestCancel(scope, turn.id)
      t.strictSame(await store.turns.heartbeat(LEASE.owner, [session.id], 60), [
        { session_id: session.id, cancelled_turn: turn.id },
      ])
      t.equal(await store.turns.breakLease(turn.id, fence.epoch), true)
      const late = store.turns.commit(fence, { turn_id: turn.id, attempt: 2 })
      t.ok((await rejection(late)) instanceof StaleOwner)
      const [taken] = (await recoverAll(store, { owner: 'replica-2', seconds: 60 })).filter(
        (one) => one.turn.id === turn.id,
      )
      t.match(taken, { turn: { recoveries: 0, cancel_requested: true }, fence: { epoch: 2 } })
      t.equal(
        await store.turns.breakLease(turn.id, fence.epoch),
        false,
        'the new owner’s lease is not broken',
      )
      if (taken) await endTurn(store, taken.fence, turn.id)
      t.equal(await store.turns.breakLease(turn.id, 2), false, 'the turn has ended')
      const next = await startTurn(store, scope, openRequest(session.id))
      t.strictSame(
        await store.turns.heartbeat(LEASE.owner, [session.id], 60),
        [{ session_id: session.id, cancelled_turn: null }],
        'nobody has asked to cancel the next turn',
      )
      await endTurn(store, next.fence, next.turn.id)
    },
  )

  await t.test('a former owner’s write fails and writes nothing', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope, LAPSED)
    const [taken] = (await recoverAll(store, { owner: 'replica-2', seconds: 60 })).filter(
      (one) => one.turn.id === turn.id,
    )
    t.match(taken, {
      turn: { recoveries: 1, state: 'running' },
      fence: { owner: 'replica-2', epoch: 2 },
      was_handed_over: false,
    })
    const before = [await store.turns.get(scope, turn.id), await store.messages.after(session.id, 0)]
    const late = message('too late', { role: 'assistant', turn_id: turn.id })
    // The last fence is of a process that lost the session and got it back: the owner's name fits, but the lease is an
    // old one.
    const stale = [fence, { ...fence, epoch: 2 }, { ...fence, owner: 'replica-2' }]
    const writes = stale.flatMap((former): Promise<unknown>[] => [
      store.turns.commit(former, {
        turn_id: turn.id,
        step: step(0),
        messages: [late],
        end: COMPLETED,
        announce: [],
      }),
      store.turns.readStep(former, turn.id, 0, 0),
      store.executions.begin(former, 'exec_1'),
    ])
    for (const thrown of await Promise.all(writes.map(rejection))) t.ok(thrown instanceof StaleOwner)
    t.strictSame([await store.turns.get(scope, turn.id), await store.messages.after(session.id, 0)], before)
    t.strictSame(await store.turns.heartbeat(LEASE.owner, [session.id], 60), [])
    for (const former of stale) await store.turns.handOver(former)
    t.strictSame(
      await store.turns.heartbeat('replica-2', [session.id], 60),
      [{ session_id: session.id, cancelled_turn: null }],
      'a former owner cannot hand the session over',
    )
    if (taken) await endTurn(store, taken.fence, turn.id)
  })

  await t.test('an owner keeps a lapsed lease that nobody took', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope, LAPSED)
    await store.turns.commit(fence, {
      turn_id: turn.id,
      messages: [message('still here', { turn_id: turn.id })],
    })
    t.strictSame(await store.turns.heartbeat(LAPSED.owner, [session.id], 60), [
      { session_id: session.id, cancelled_turn: null },
    ])
    const taken = await recoverAll(store, { owner: 'replica-2', seconds: 60 })
    t.notOk(
      taken.some((one) => one.turn.id === turn.id),
      'a prolonged lease cannot be taken',
    )
    await endTurn(store, fence, turn.id)
  })

  await t.test(
    'a valid lease does not allow writes to an ended turn or to a turn of another session',
    async (t) => {
      const scope = owner()
      const one = await runningTurn(store, scope)
      const other = await runningTurn(store, scope)
      t.ok(
        (await rejection(store.turns.commit(one.fence, { turn_id: other.turn.id, attempt: 5 }))) instanceof
          StaleOwner,
      )
      await endTurn(store, one.fence, one.turn.id)
      const messages = [message('too late', { turn_id: one.turn.id })]
      for (const rest of [{ end: { state: 'cancelled' as const } }, { end: COMPLETED, messages }]) {
        const late = store.turns.commit(one.fence, { turn_id: one.turn.id, ...rest })
        t.ok((await rejection(late)) instanceof StaleOwner, 'the turn’s end gave the lease back')
      }
      t.strictSame(await store.turns.heartbeat(LEASE.owner, [one.session.id], 60), [])
      const next = await startTurn(store, scope, openRequest(one.session.id))
      t.ok(
        (await rejection(endTurn(store, next.fence, one.turn.id))) instanceof StaleOwner,
        'the lease of the next turn does not allow it',
      )
      await endTurn(store, next.fence, next.turn.id)
      await endTurn(store, other.fence, other.turn.id)
      t.equal(await store.sessions.delete(scope, other.session.id), 'deleted')
      t.ok(
        (await rejection(endTurn(store, other.fence, other.turn.id))) instanceof StaleOwner,
        'the session is deleted',
      )
    },
  )

  await t.test('replicas that recover at once get each lost turn once, with its announcements', async (t) => {
    const scope = owner()
    const lost = await Promise.all(Array.from({ length: 12 }, () => runningTurn(store, scope, LAPSED)))
    const [first] = lost
    if (!first) return t.fail()
    const event = announced(first.turn.id, first.session.id, 'unsaid')
    await store.turns.commit(first.fence, { turn_id: first.turn.id, announce: [event] })
    // Like a commit of a discarded step: it keeps the announcements.
    await store.turns.commit(first.fence, { turn_id: first.turn.id, attempt: 2 })
    const both = ['replica-2', 'replica-3'].map((name) => recoverAll(store, { owner: name, seconds: 60 }))
    const taken = (await Promise.all(both)).flat()
    const mine = taken.filter((one) => one.turn.owner === scope.owner)
    t.strictSame(mine.map((one) => one.turn.id).sort(), lost.map((one) => one.turn.id).sort())
    t.ok(mine.every((one) => one.turn.recoveries === 1 && one.fence.epoch === 2))
    t.strictSame(mine.find((one) => one.turn.id === first.turn.id)?.announce, [event])
    for (const one of taken) await endTurn(store, one.fence, one.turn.id)
  })

  await t.test('a turn that is handed over can be taken at once, which counts as no recovery', async (t) => {
    const scope = owner()
    const { turn, fence } = await runningTurn(store, scope)
    await store.turns.handOver(fence)
    t.ok((await rejection(endTurn(store, fence, turn.id))) instanceof StaleOwner)
    const lease = { owner: 'replica-2', seconds: 60 }
    const others = await recoverAll(store, lease, [turn.id])
    t.notOk(
      others.some((one) => one.turn.id === turn.id),
      'a replica that excludes the turn does not get it',
    )
    const taken = [...others, ...(await recoverAll(store, lease))]
    const mine = taken.find((one) => one.turn.id === turn.id)
    t.match(mine, {
      turn: { recoveries: 0 },
      fence: { owner: 'replica-2' },
      announce: NONE,
      was_handed_over: true,
    })
    for (const one of taken) await endTurn(store, one.fence, one.turn.id)
  })

  await t.test('a turn that waits for input is resumed by one owner only', async (t) => {
    const scope = owner()
    const { session, turn, fence } = await runningTurn(store, scope)
    t.equal(await store.turns.resumeAwaiting(turn.id, LEASE), null, 'a running turn cannot be resumed')
    t.equal(await store.turns.resumeAwaiting('turn_none', LEASE), null)
    const event = announced(turn.id, session.id, 'awaiting')
    await store.turns.commit(fence, { turn_id: turn.id, state: 'awaiting_input', announce: [event] })
    const other = await runningTurn(store, scope)
    await store.turns.commit(other.fence, { turn_id: other.turn.id, state: 'awaiting_input' })
    t.equal((await store.sessions.get(scope, session.id))?.active_turn_id, turn.id)
    t.match(await store.turns.open(scope, openRequest(session.id)), { kind: 'busy', active_turn_id: turn.id })
    t.ok((await store.turns.unannounced(1000)).some((left) => left.turn_id === turn.id))
    t.notOk(
      (await recoverAll(store, LEASE)).some((one) => one.turn.id === turn.id),
      'a turn that waits does not count as lost',
    )
    const queued = openRequest(session.id, { on_busy: 'enqueue' })
    t.equal((await store.turns.open(scope, queued))?.kind, 'queued')
    t.equal(
      await store.turns.startQueued(session.id, { id: id('msg') }, LEASE),
      null,
      'no queued turn starts beside it',
    )
    t.notOk((await store.turns.idleQueues(1000)).includes(session.id))
    const resumed = await Promise.all(
      ['replica-2', 'replica-3'].map((name) =>
        store.turns.resumeAwaiting(turn.id, { owner: name, seconds: 60 }),
      ),
    )
    const [mine, ...more] = resumed.filter((one) => one !== null)
    t.match(mine, { turn: { id: turn.id, state: 'running' }, fence: { session_id: session.id, epoch: 2 } })
    t.equal(more.length, 0)
    t.match(
      await store.turns.get(scope, other.turn.id),
      { state: 'awaiting_input' },
      'another waiting turn stays',
    )
    t.strictSame(mine?.announce, [event], 'the resumed turn comes with its announcements')
    t.ok((await rejection(endTurn(store, fence, turn.id))) instanceof StaleOwner)
    if (mine) await endTurn(store, mine.fence, turn.id)
  })

  await t.test('the store says when it is ready', async (t) => {
    t.equal(await store.ready(), undefined)
    const thrown = await rejection(store.registry.get('ses_none'))
    t.ok(thrown instanceof BatonError && thrown.code === 'session_not_found')
  })
}
