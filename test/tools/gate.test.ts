/** How many calls run at once, in one process and over replicas that share a Redis. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { createLink } from '../../src/bus/redis/link.ts'
import { createSharedSlots, type SharedSlots } from '../../src/bus/redis/slots.ts'
import { createMemorySlots, type Slots } from '../../src/bus/slots.ts'
import { createMetrics } from '../../src/telemetry.ts'
import { createGate, type Gate, type GateOptions } from '../../src/tools/gate.ts'
import { ON_REDIS, SERVERS } from '../given-servers.ts'
import { eventually } from '../waiting.ts'

const log = pino({ level: 'silent' })

interface Replica {
  slots: SharedSlots
  /** Commands fail, as they do while Redis is away */
  away(isAway: boolean): void
  /** The replica falls silent at once, like a process that was killed: it gives nothing back */
  die(): void
}

let replicas = 0

async function replica(t: Test, scope: string, leaseMs = 60_000, total = 10): Promise<Replica> {
  let isAway = false
  let room: SharedSlots | null = null
  const link = createLink({
    url: SERVERS.REDIS_URL,
    log,
    onMessage: (_, message) => room?.hear(message),
    onUp() {},
    onMissed() {},
  })
  t.teardown(() => link.close())
  await link.open()
  const run: typeof link.run = (...args) => (isAway ? Promise.reject(new Error('away')) : link.run(...args))
  const name = `r${++replicas}`
  const slots = createSharedSlots({ link: { ...link, run }, scope, total, replica: name, leaseMs, log })
  room = slots
  await link.subscribe(slots.channel)
  const die = () => {
    isAway = true
    slots.close()
    room = null
  }
  t.teardown(die)
  const away = (value: boolean) => {
    isAway = value
  }
  return { slots, die, away }
}

const scopeOf = (name: string) => `${name}-${process.pid}-${Date.now()}`

interface CountedGate extends Gate {
  /** Calls in line for a slot */
  waiting(): number
}

const metrics = createMetrics({ defaults: false })
const gateOn = (slots: Slots, over: Partial<GateOptions> = {}): CountedGate => {
  let waiting = 0
  const toolWaits = (change: 1 | -1) => {
    waiting += change
  }
  const counted = { ...metrics, toolWaits }
  const gate = createGate({ slots, queueMs: 60_000, metrics: counted, ...over })
  return { ...gate, waiting: () => waiting }
}

/** Enters the gate and notes the name; `leave` gives the slot back. */
function visitor(gate: Gate, order: string[]) {
  const { signal } = new AbortController()
  return (tool: string, most: number, name: string) =>
    gate.enter(tool, most, signal).then((leave) => {
      order.push(name)
      return leave
    })
}

/** Waits until the calls are in line: only then is their order of arrival known. */
const arrived = (gate: CountedGate, count: number) => eventually(() => gate.waiting() >= count)

async function contract(t: Test, pair: (t: Test, total: number) => Promise<[Slots, Slots]>) {
  await t.test('each tool and all tools together have a limit, and calls come in by arrival', async (t) => {
    const [one, two] = await pair(t, 3)
    const [a, b] = [gateOn(one), gateOn(two)]
    const order: string[] = []
    const [here, there] = [visitor(a, order), visitor(b, order)]
    const first = await here('read', 2, 'read 1')
    const second = await there('read', 2, 'read 2')
    const third = here('read', 2, 'read 3')
    await arrived(a, 1)
    const fourth = there('read', 2, 'read 4')
    await arrived(b, 1)
    const other = await there('write', 1, 'write 1')
    const late = here('write', 9, 'write 2')
    await arrived(a, 2)
    t.same(order, ['read 1', 'read 2', 'write 1'], 'a full tool holds up no other tool')
    first()
    const leaveThird = await third
    t.equal(order.at(-1), 'read 3', 'the call that came first is served first, at whichever replica')
    t.equal(a.waiting() + b.waiting(), 2)
    second()
    const leaveFourth = await fourth
    other()
    const leaveLate = await late
    t.same(order.slice(3), ['read 3', 'read 4', 'write 2'])
    for (const leave of [leaveThird, leaveFourth, leaveLate]) leave()
    const all = await Promise.all([here('x', 3, 'x'), there('x', 3, 'x'), here('x', 3, 'x')])
    for (const leave of all) leave()
  })

  await t.test('a call that gives up leaves the line, and a full line refuses', async (t) => {
    const [one, two] = await pair(t, 10)
    const [a, b] = [gateOn(one), gateOn(two, { queueMs: 30 })]
    const leave = await a.enter('read', 1, new AbortController().signal)
    await t.rejects(b.enter('read', 1, new AbortController().signal, 'srv.read'), {
      message: 'srv.read is busy: no slot came free within 0.03 s.',
    })
    const abort = new AbortController()
    const waiting = Promise.any(Array.from({ length: 64 }, () => a.enter('read', 1, abort.signal)))
    waiting.catch(() => {})
    await arrived(a, 64)
    await t.rejects(b.enter('read', 1, new AbortController().signal, 'srv.read'), {
      message: 'srv.read is busy: 64 calls wait for it already.',
    })
    abort.abort(new Error('cancelled'))
    await t.rejects(waiting, { errors: Array(64).fill({ message: 'cancelled' }) })
    await t.rejects(a.enter('read', 1, abort.signal), { message: 'cancelled' })
    const next = gateOn(two).enter('read', 1, new AbortController().signal)
    leave()
    const leaveNext = await next
    leave()
    await t.rejects(
      b.enter('read', 1, new AbortController().signal),
      { message: /no slot came free/ },
      'a slot that is given back twice comes free once',
    )
    leaveNext()
    t.equal(a.waiting() + b.waiting(), 0)
  })

  await t.test('a hundred calls all come in, and never more at once than there are slots', async (t) => {
    const gates = (await pair(t, 5)).map((slots) => gateOn(slots))
    const now = { all: 0, read: 0, write: 0 }
    const most = { ...now }
    const order: number[] = []
    const call = async (i: number) => {
      const tool = i % 3 === 0 ? 'write' : 'read'
      const leave = await gates[i % 2]?.enter(tool, tool === 'read' ? 4 : 2, new AbortController().signal)
      for (const key of ['all', tool] as const) most[key] = Math.max(most[key], ++now[key])
      order.push(i)
      await sleep(i % 5)
      now.all--
      now[tool]--
      leave?.()
    }
    await Promise.all(Array.from({ length: 100 }, (_, i) => call(i)))
    t.same(now, { all: 0, read: 0, write: 0 })
    t.same(most, { all: 5, read: 4, write: 2 }, 'all slots are used, and no more')
    t.equal(new Set(order).size, 100)
  })
}

/** The same slots with other ticket ids, for another gate of the process. */
const withNames = (slots: Slots, prefix: string): Slots => ({
  enter: (ticket, limit) => slots.enter({ ...ticket, id: prefix + ticket.id }, limit),
  leave: (ticket) => slots.leave({ ...ticket, id: prefix + ticket.id }),
  onGranted: (fn) =>
    slots.onGranted((id) => (id.startsWith(prefix) ? fn(id.slice(prefix.length)) : undefined)),
})

t.test('a gate keeps its contract in one process', async (t) =>
  contract(t, async (_, total) => {
    const slots = createMemorySlots(total)
    // A process has one gate. Here two gates share the slots, and each listens for its own tickets.
    return [slots, withNames(slots, 'b')]
  }),
)

t.test('a gate keeps its contract on two replicas that share a Redis', ON_REDIS, async (t) => {
  await contract(t, async (t, total) => {
    const scope = scopeOf('contract')
    const one = () => replica(t, scope, 60_000, total)
    return [(await one()).slots, (await one()).slots]
  })

  await t.test('slots are shared within a scope only', async (t) => {
    const one = gateOn((await replica(t, scopeOf('one'))).slots)
    const two = gateOn((await replica(t, scopeOf('two'))).slots)
    await one.enter('read', 1, new AbortController().signal)
    t.ok(await two.enter('read', 1, new AbortController().signal))
  })

  await t.test('a dead replica’s slots, and its places in line, come free', async (t) => {
    const scope = scopeOf('dead')
    const [dead, alive] = [await replica(t, scope, 300), await replica(t, scope, 300)]
    const doomed = gateOn(dead.slots)
    await doomed.enter('read', 1, new AbortController().signal)
    const abort = new AbortController()
    t.teardown(() => abort.abort())
    doomed.enter('read', 1, abort.signal).catch(() => {})
    await arrived(doomed, 1)
    const gate = gateOn(alive.slots)
    const waiting = gate.enter('read', 1, new AbortController().signal)
    await arrived(gate, 1)
    dead.die()
    ;(await waiting)()
  })

  await t.test('a dead replica’s place in line comes free while the slot is taken', async (t) => {
    const scope = scopeOf('place')
    const [dead, alive] = [await replica(t, scope, 300), await replica(t, scope)]
    const one = (id: string) => ({ ...ticket(id), most: 1 })
    t.equal(await alive.slots.enter(one('runs'), 1), 'in')
    t.equal(await dead.slots.enter(one('waits'), 1), 'line')
    const redis = new Redis(SERVERS.REDIS_URL)
    t.teardown(() => redis.disconnect())
    for (const key of ['held', 'line', 'seen', 'count']) {
      t.ok((await redis.ttl(`baton:{places:${scope}}:${key}`)) > 0, `${key} expires if all replicas die`)
    }
    dead.die()
    await eventually(async () => (await alive.slots.enter(one('next'), 1)) === 'line')
  })

  await t.test(
    'Redis may evict any of the keys while calls run: no slot is lost, or given twice',
    async (t) => {
      const redis = new Redis(SERVERS.REDIS_URL)
      t.teardown(() => redis.disconnect())
      for (const key of ['held', 'line', 'seen', 'count']) {
        const scope = scopeOf(`evicted-${key}`)
        const { slots } = await replica(t, scope, 600)
        const one = (id: string) => ({ ...ticket(id), most: 1 })
        const enter = (id: string) => slots.enter(one(id), 1)
        t.equal(await enter('runs'), 'in')
        t.equal(await enter('waits'), 'line')
        const evicted = `baton:{places:${scope}}:${key}`
        await redis.del(evicted)
        // The replica's next renewal puts back what it knows.
        await eventually(() => redis.exists(evicted))
        t.equal(await enter('third'), 'full', `${key}: one runs and one waits`)
        for (const id of ['waits', 'runs']) await slots.leave(one(id))
        t.equal(await enter('runs'), 'in', `${key}: the slot is free again`)
        t.equal(await enter('waits'), 'line', `${key}: and so is the place in line`)
        for (const id of ['waits', 'runs']) await slots.leave(one(id))
        t.strictSame(await redis.keys(`baton:{places:${scope}}:*`), [], 'no call leaves anything behind')
      }
    },
  )

  await t.test('a slot is kept for as long as its call runs', async (t) => {
    const scope = scopeOf('long')
    const [one, two] = [await replica(t, scope, 1_000), await replica(t, scope, 1_000)]
    const leave = await gateOn(one.slots).enter('read', 1, new AbortController().signal)
    let isIn = false
    const waiting = gateOn(two.slots).enter('read', 1, new AbortController().signal)
    void waiting.then(() => {
      isIn = true
    })
    await sleep(2_200)
    t.notOk(isIn, 'the slot is still taken after more than two leases')
    leave()
    ;(await waiting)()
  })

  await t.test(
    'while Redis is away each replica counts its own calls, including those that run already',
    async (t) => {
      const scope = scopeOf('away')
      const [one, two] = [await replica(t, scope, 150), await replica(t, scope)]
      const gate = gateOn(one.slots)
      const leave = await gate.enter('read', 2, new AbortController().signal)
      const elsewhere = await gateOn(two.slots).enter('read', 2, new AbortController().signal)
      const waiting = gate.enter('read', 2, new AbortController().signal)
      await arrived(gate, 1)
      one.away(true)
      const second = await waiting
      t.pass('a call that waited in the shared line comes in at its own replica')
      const third = gate.enter('read', 2, new AbortController().signal)
      await arrived(gate, 1)
      leave()
      const leaveThird = await third
      one.away(false)
      const counted = async () => (await two.slots.enter(ticket('probe'), 0)) === 'full'
      elsewhere()
      while (!(await counted())) await two.slots.leave(ticket('probe'))
      t.pass('calls that came in while Redis was away count for all replicas once it is back')
      second()
      leaveThird()
    },
  )
})

const ticket = (id: string) => ({ id, tool: 'read', most: 2 })

t.test('metrics show the calls that run, wait and were refused', async (t) => {
  const metrics = createMetrics({ defaults: false })
  const gate = gateOn(createMemorySlots(10), { queueMs: 1_000, metrics })
  const leave = await gate.enter('key', 1, new AbortController().signal, 'srv.read')
  const waiting = gate.enter('key', 1, new AbortController().signal, 'srv.read')
  waiting.catch(() => {})
  await sleep(0)
  const page = await metrics.text()
  t.match(page, /^baton_tools_running 1$/m)
  t.match(page, /^baton_tools_waiting 1$/m)
  await t.rejects(waiting, { message: /busy/ })
  leave()
  const after = await metrics.text()
  t.match(after, /^baton_tools_running 0$/m)
  t.match(after, /^baton_tools_waiting 0$/m)
  t.match(after, /^baton_tool_wait_seconds_count\{tool="srv.read"\} 1$/m)
  t.match(after, /^baton_tool_busy_total\{tool="srv.read"\} 1$/m)
})

t.test('a tool whose slots are all taken elsewhere has a busy count of 0 before it grows', async (t) => {
  const metrics = createMetrics({ defaults: false })
  const gate = gateOn(createMemorySlots(0), { queueMs: 500, metrics })
  const refused = t.rejects(gate.enter('key', 1, new AbortController().signal, 'srv.read'), {
    message: /busy/,
  })
  t.match(await metrics.text(), /^baton_tool_busy_total\{tool="srv.read"\} 0$/m)
  await refused
  t.match(await metrics.text(), /^baton_tool_busy_total\{tool="srv.read"\} 1$/m)
})

t.test('a call that is cancelled while it asks for a slot gives back what it gets', async (t) => {
  for (const answer of ['in', 'line'] as const) {
    const left: string[] = []
    let tell = (_: 'in' | 'line') => {}
    const slots: Slots = {
      enter: () =>
        new Promise((resolve) => {
          tell = resolve
        }),
      leave: async ({ id }) => void left.push(id),
      onGranted() {},
    }
    const abort = new AbortController()
    const entering = gateOn(slots).enter('read', 1, abort.signal)
    abort.abort(new Error('cancelled'))
    tell(answer)
    await t.rejects(entering, { message: 'cancelled' })
    t.equal(left.length, 1, answer)
  }
})
