/** The heartbeat of leases and the scan for work, on doubles of the store and the bus. */
import { mock } from 'node:test'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import type { BusEvent } from '../../src/bus/bus.ts'
import { BatonError } from '../../src/errors.ts'
import { type Fence, type Store, type Turn, Unreadable } from '../../src/store/store.ts'
import { type ActiveTurn, CANCELLED, createActive, OWNER_LOST } from '../../src/turns/active.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { startLeases } from '../../src/turns/leases.ts'
import type { Owned } from '../../src/turns/owned.ts'
import { announced } from '../contracts/store-rows.ts'
import { gate } from '../waiting.ts'

/** Starts the leases. The first look for work, at the start, is over when this returns. */
async function watching(
  t: Test,
  turns: Partial<Store['turns']>,
  bus: object = {},
  isDraining = () => false,
  help: (turn: string) => Promise<void> = async () => {},
) {
  const active = new Map<string, ActiveTurn>()
  const none = async () => []
  const nothing = {
    heartbeat: none,
    recover: async () => null,
    idleQueues: none,
    expiredApprovals: none,
    resumable: none,
  }
  const deps = {
    store: {
      turns: { ...nothing, unannounced: none, ...turns },
      messages: { ofTurn: none },
      executions: { decide: (_: unknown, turn: string) => help(turn) },
    },
    bus: { ready: async () => {}, ...bus },
    settings: { lease: { owner: 'replica-1', seconds: 600 } },
    log: pino({ level: 'silent' }),
    metrics: { turnRecovered() {} },
  } as unknown as EngineDeps
  const owned = {
    active,
    isDraining,
    handedOver: () => 0,
    launch() {},
    startNext: help,
    resume: help,
    track: (work: Promise<unknown>) => work,
  } as unknown as Owned
  const leases = startLeases(deps, owned)
  t.teardown(() => leases.stop())
  await new Promise(setImmediate)
  const own = (session: string) => {
    const turn = { id: `turn_of_${session}` } as Turn
    const mine = createActive(turn, {} as Fence)
    active.set(session, mine)
    return mine
  }
  return { ...leases, own }
}

t.test('a look for work prolongs the process’s own leases before it takes over lost turns', async (t) => {
  const asked: string[] = []
  const heartbeat = async () => {
    await new Promise(setImmediate)
    asked.push('heartbeat')
    return [{ session_id: 'ses_1', cancelled_turn: null }]
  }
  const recover = async () => {
    asked.push('recover')
    return null
  }
  const { look, own } = await watching(t, { heartbeat, recover })
  const mine = own('ses_1')
  asked.splice(0)
  await look()
  t.strictSame(asked, ['heartbeat', 'recover'])
  t.notOk(mine.stop.signal.aborted)
})

t.test('a heartbeat stops turns that another replica owns by now or that are to be cancelled', async (t) => {
  const heartbeat = async () => [
    { session_id: 'ses_cancelled', cancelled_turn: 'turn_of_ses_cancelled' },
    { session_id: 'ses_kept', cancelled_turn: null },
  ]
  let passedOver: readonly string[] = []
  const recover: Store['turns']['recover'] = async (_, except = []) => {
    passedOver = except
    return null
  }
  const { look, own } = await watching(t, { heartbeat, recover })
  const turns = ['ses_cancelled', 'ses_lost', 'ses_kept'].map(own)
  await look()
  t.strictSame(passedOver, ['turn_of_ses_kept'], 'the others may hang here: any process may take them')
  t.strictSame(
    turns.map(({ stop }) => stop.signal.reason),
    [CANCELLED, OWNER_LOST, undefined],
  )
})

t.test('a turn that begins while a heartbeat is under way is not taken for lost', async (t) => {
  let begin = () => {}
  const heartbeat = async () => {
    begin()
    return [{ session_id: 'ses_1', cancelled_turn: null }]
  }
  const { look, own } = await watching(t, { heartbeat })
  own('ses_1')
  let later: ActiveTurn | undefined
  begin = () => {
    later = own('ses_2')
  }
  await look()
  t.equal(later?.stop.signal.aborted, false)
})

t.test('leases are prolonged while a look for work goes on', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  let beats = 0
  const heartbeat = async () => {
    beats++
    return [{ session_id: 'ses_1', cancelled_turn: null }]
  }
  const { own } = await watching(t, { heartbeat, recover: () => new Promise(() => {}) })
  own('ses_1')
  mock.timers.tick(199_999)
  t.equal(beats, 0)
  mock.timers.tick(1)
  t.equal(beats, 1)
})

t.test('work is looked for at every third of a lease, until the process drains or stops', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  let [looks, isDraining] = [0, false]
  const idleQueues = async () => {
    looks++
    return []
  }
  const { stop } = await watching(t, { idleQueues }, {}, () => isDraining)
  const looksAfterwards = async () => {
    mock.timers.tick(200_000)
    await new Promise(setImmediate)
    return looks
  }
  t.equal(looks, 1)
  t.equal(await looksAfterwards(), 2)
  isDraining = true
  t.equal(await looksAfterwards(), 2)
  isDraining = false
  stop()
  t.equal(await looksAfterwards(), 2)
})

t.test('one look takes over twenty turns at most, and no more once the process drains', async (t) => {
  let [taken, isDraining] = [0, false]
  const recover: Store['turns']['recover'] = async () => {
    isDraining = ++taken === 25
    return { turn: {} as Turn, fence: {} as Fence, announce: [], was_handed_over: false }
  }
  const { look } = await watching(t, { recover }, {}, () => isDraining)
  t.equal(taken, 20, 'a replica that starts after a crash does not drown in lost turns')
  await look()
  t.equal(taken, 25)
})

t.test('a turn that cannot be helped stops no help for others, and a store that is away does', async (t) => {
  const helped: string[] = []
  const passedOver: string[][] = []
  let why = new Error('anything')
  const help = async (turn: string) => {
    helped.push(turn)
    if (turn.startsWith('broken')) throw why
  }
  const recover: Store['turns']['recover'] = async (_, unreadable = []) => {
    passedOver.push([...unreadable])
    return null
  }
  const turns = {
    recover,
    expiredApprovals: async () => ['broken 1', 'lapsed'].map((turn_id) => ({ turn_id, call_id: 'call_1' })),
    idleQueues: async () => ['broken 2', 'queued'],
    resumable: async () => ['broken 3', 'decided'],
  }
  const { look } = await watching(t, turns, {}, () => false, help)
  t.strictSame(helped.splice(0), ['broken 2', 'queued', 'broken 1', 'lapsed', 'broken 3', 'decided'])
  why = new Unreadable(new Error('its key is missing'))
  await look()
  t.equal(helped.splice(0).length, 6)
  why = new BatonError('unavailable', 'away')
  await look()
  t.strictSame(helped, ['broken 2'])
  t.strictSame(passedOver, [[], [], ['broken 2', 'broken 1', 'broken 3']], 'only these need their key')
})

t.test('a turn that was left as unreadable is looked for at once if it is to be cancelled', async (t) => {
  const passedOver: string[][] = []
  const recover: Store['turns']['recover'] = async (_, unreadable = []) => {
    passedOver.push([...unreadable])
    return null
  }
  const { leave, look, retry } = await watching(t, { recover })
  leave('turn_1', new Unreadable(new Error('its key is missing')))
  await look()
  retry('turn_1')
  retry('turn_2')
  await new Promise(setImmediate)
  t.strictSame(passedOver, [[], ['turn_1'], []])
})

t.test('a call for a look while another look is under way makes a second look afterwards', async (t) => {
  const { opened, open } = gate()
  let looks = 0
  const recover = async () => {
    looks++
    await opened
    return null
  }
  const { look } = await watching(t, { recover })
  void look()
  void look()
  open()
  await new Promise(setImmediate)
  t.equal(looks, 2)
})

t.test('after the store was away owners get a lease’s time before their turns are taken over', async (t) => {
  let isAway = true
  let looks = 0
  const recover = async () => {
    looks++
    if (isAway) throw new BatonError('unavailable', 'away')
    return null
  }
  let isBroken = false
  const idleQueues = async () => {
    if (isBroken) throw new Error('anything')
    return []
  }
  let now = 0
  mock.method(performance, 'now', () => now)
  t.teardown(() => mock.restoreAll())
  const { look } = await watching(t, { recover, idleQueues })
  isAway = false
  now = 599_000
  await look()
  t.equal(looks, 1, 'the store is back, and the owners may prolong their leases first')
  now = 600_000
  isBroken = true
  await look()
  t.equal(looks, 2)
  await look()
  t.equal(looks, 3, 'a look that failed for another reason hinders no takeover')
})

t.test('a turn’s unsent events are left to its owner for a while and kept until they are sent', async (t) => {
  const names = ['message']
  const left = (session_id: string) => ({
    session_id,
    turn_id: `turn_of_${session_id}`,
    epoch: 3,
    events: async () =>
      names.map((name) => ({ ...announced(`turn_of_${session_id}`, session_id, name), lost: true as const })),
  })
  const did: string[] = []
  let isRefused = true
  const append = async (session: string, [event]: BusEvent[]) => {
    did.push(`append ${session}`)
    t.match(
      event,
      { once: announced(`turn_of_${session}`, session, 'message').key, again: true, lost: true },
      'the event is marked as a possible repeat, since its owner may have sent it, and as one after a loss',
    )
    if (isRefused && session === 'ses_1') throw new BatonError('unavailable', 'away')
  }
  let isReady = false
  const ready = async () => {
    if (!isReady) throw new BatonError('unavailable', 'away')
  }
  const forgetAnnouncements: Store['turns']['forgetAnnouncements'] = async ([turn], epoch) =>
    void did.push(`forget ${turn} ${epoch}`)
  let now = 0
  mock.method(performance, 'now', () => now)
  t.teardown(() => mock.restoreAll())
  const turns = { unannounced: async () => ['ses_1', 'ses_2'].map(left), forgetAnnouncements }
  const { look } = await watching(t, turns, { append, ready })
  now = 10_000
  await look()
  isReady = true
  await look()
  now = 12_900
  names.push('end')
  await look()
  now = 15_800
  await look()
  t.strictSame(
    did,
    [],
    'nothing is sent while the bus is away or the owner has its time for the newest event',
  )
  now = 16_000
  await look()
  const second = ['append ses_2', 'forget turn_of_ses_2 3']
  t.strictSame(did.splice(0), ['append ses_1', ...second], 'one log may refuse what another takes')
  isRefused = false
  await look()
  t.strictSame(did, ['append ses_1', 'forget turn_of_ses_1 3', ...second])
})

t.test('events that a log refuses for good give way to a gap, and to those of other turns', async (t) => {
  const left = (session_id: string) => ({
    session_id,
    turn_id: `turn_of_${session_id}`,
    epoch: null,
    events: async () => [announced(`turn_of_${session_id}`, session_id, 'message')],
  })
  const unsaid = new Set(['ses_1', 'ses_2'])
  const unannounced = async () => [...unsaid].slice(0, 1).map(left)
  const forgetAnnouncements: Store['turns']['forgetAnnouncements'] = async ([turn = '']) =>
    void unsaid.delete(turn.replace('turn_of_', ''))
  const sizes: string[] = []
  const append = async (session: string, events: BusEvent[]) => {
    sizes.push(`${session} ${events.length}`)
    if (session === 'ses_1' && events.length > 0) throw new BatonError('unavailable', 'too large')
  }
  let now = 0
  mock.method(performance, 'now', () => now)
  t.teardown(() => mock.restoreAll())
  const { look } = await watching(t, { unannounced, forgetAnnouncements }, { append })
  for (let looks = 0; looks < 6; looks++) {
    now += 10_000
    await look()
  }
  t.strictSame(sizes, ['ses_1 1', 'ses_1 1', 'ses_1 1', 'ses_1 0', 'ses_2 1'])
  t.strictSame([...unsaid], [])
})
