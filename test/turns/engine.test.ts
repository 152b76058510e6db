/** The engine on doubles: what it asks of its neighbours, and when it is done. */
import { setTimeout as sleep } from 'node:timers/promises'
import { pino } from 'pino'
import t from 'tap'
import { createMemoryBus } from '../../src/bus/memory.ts'
import type { Turn } from '../../src/store/store.ts'
import type { EngineDeps } from '../../src/turns/deps.ts'
import { createEngine } from '../../src/turns/engine.ts'

const turn = { id: 'turn_1', session_id: 'ses_1', owner: 'ann', state: 'running', ended_at: null } as Turn
const caller = { owner: 'ann', admin: false, key_id: null }

/** No place is free, so that no turn gets as far as its loop. */
function setUp() {
  const bus = createMemoryBus({})
  const none = async () => []
  const deps = {
    bus,
    store: {
      sessions: { get: async () => ({ id: 'ses_1' }) },
      turns: {
        get: async () => turn,
        startQueued: async () => ({ turn, fence: { session_id: 'ses_1', owner: 'here', epoch: 1 } }),
        handOver: async () => {},
        announced: async () => {},
        recover: none,
        idleQueues: none,
        lapsedApprovals: none,
        resumable: none,
        unannounced: none,
      },
      messages: {},
      executions: {},
      connectors: {},
    },
    tools: {},
    metrics: { turnQueued() {} },
    log: pino({ level: 'silent' }),
    settings: {
      replica: 'here',
      leaseSeconds: 60,
      concurrentTurns: 0,
      waitingTurns: 10,
      overloadMs: 1_000,
    },
  } as unknown as EngineDeps
  return { bus, engine: createEngine(deps) }
}

t.test('a turn that nobody waits for is answered without the bus', async (t) => {
  const { bus, engine } = setUp()
  t.teardown(() => engine.drain(0))
  const { read } = bus
  let reads = 0
  bus.read = (...asked) => {
    reads++
    return read(...asked)
  }
  const never = new AbortController().signal
  t.equal(await engine.wait(caller, 'turn_1', 0, never), turn)
  t.equal(reads, 0)
  t.equal(await engine.wait(caller, 'turn_1', 0.01, never), turn)
  t.equal(reads, 1)
})

t.test('a drain is over when its turns are handed over, and others know', async (t) => {
  const { bus, engine } = setUp()
  const told: string[] = []
  const publish = bus.publish
  bus.publish = async (topic, message) => {
    await publish(topic, message)
    await sleep(20)
    told.push(topic)
  }
  engine.begin()
  await publish('queue', 'ses_1')
  while (engine.running() === 0) await sleep(1)
  await engine.drain(10_000)
  t.strictSame(told, ['control'])
})
