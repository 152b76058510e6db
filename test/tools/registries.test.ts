/** Registries as a process keeps them, and as several replicas write them. */
import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { pino } from 'pino'
import t from 'tap'
import type { ToolsDelta } from '../../src/chat/event.ts'
import { BatonError } from '../../src/errors.ts'
import type { RegistryRow, RegistryTool } from '../../src/store/store.ts'
import { createRegistries, type Make, type RegistriesDeps } from '../../src/tools/registries.ts'
import { eventually, gate } from '../waiting.ts'
import { createMemory } from './session-tools-doubles.ts'

const log = pino({ level: 'silent' })
/** The registries of a process whose events nobody hears. */
const alone = (store: RegistriesDeps['store']) =>
  createRegistries({ store, sayToolsChanged: async () => {}, log })

t.test('kept registries are bounded by their size, however few their tools', (t) => {
  const registries = alone({} as RegistriesDeps['store'])
  const words = 'x'.repeat(4 << 20)
  const large = [
    { description: '', parameters: {}, input_schema: { description: words } },
    { description: words, parameters: {}, input_schema: {} },
  ] as RegistryTool[]
  const row = (session_id: string): RegistryRow => {
    const tools = large.slice(Number(session_id.at(-1)) % 2).slice(0, 1)
    return { session_id, revision: 1, updated_at: '', tools }
  }
  const sessions = Array.from({ length: 20 }, (_, i) => `ses_${i}`)
  for (const session of sessions) registries.keep(row(session))
  const kept = sessions.map((session) => registries.keptRevision(session))
  t.strictSame(
    kept,
    [-1, -1, -1, -1, -1, ...Array(15).fill(1)],
    'the registries that were kept first have gone',
  )
  t.equal(registries.latestRevision('ses_0'), 1, 'the revision of a registry that has gone is still known')
  for (const revision of [5, 3]) registries.noteRevision('ses_0', revision)
  t.equal(registries.latestRevision('ses_0'), 5, 'a message that comes late changes nothing')
  registries.noteAnnounced('ses_0', 7)
  t.equal(registries.latestRevision('ses_0'), 7)
  const first = registries.keep(row('ses_19'))
  t.equal(registries.keep(row('ses_19')), first, 'what was made of a registry is not made again')
  t.end()
})

const OTHER: Make = async () => ({ tools: [], added: [], removed: [], changed: ['s.a'] })

/**
 * Replicas on one store, whose dates are days old by the clock here. `create` makes a replica with its own way to
 * announce.
 */
function replicas() {
  const { store, rows } = createMemory()
  const { put, grounds } = store.registry
  let writtenAt = 0
  let clockMovedMs = 0
  store.registry.put = async (changes) => {
    const written = await put(changes)
    writtenAt = performance.now()
    return written
  }
  store.registry.grounds = async (known) => {
    const { sessions, pins } = await grounds(known)
    const age_ms = performance.now() + clockMovedMs - writtenAt
    return { sessions: sessions.map((one) => ({ ...one, age_ms })), pins }
  }
  return {
    rows,
    moveClock(ms: number) {
      clockMovedMs = ms
    },
    create: (sayToolsChanged: RegistriesDeps['sayToolsChanged']) =>
      createRegistries({ store, sayToolsChanged, log }),
  }
}

t.test('a revision has one date at every replica: the date that the store gave it', async (t) => {
  const { store } = createMemory()
  const { row } = await alone(store).change('ses_1', OTHER)
  t.strictSame(row, await alone(store).current('ses_1'))
})

t.test('a registry and its bindings are of one moment, though a newer one comes meanwhile', async (t) => {
  const { store } = createMemory()
  const registries = alone(store)
  const { row } = await registries.change('ses_1', OTHER)
  const { grounds } = store.registry
  store.registry.grounds = async (known) => {
    const found = await grounds(known)
    registries.keep({ ...row, revision: 2 })
    return found
  }
  t.equal((await registries.ground('ses_1')).row, row)
})

t.test('what a registry is made of brings the accepted definitions of each server', async (t) => {
  const { store } = createMemory()
  const registries = alone(store)
  for (const [server, tool] of [
    ['con_s', 'a'],
    ['con_s', 'b'],
    ['con_t', 'a'],
  ] as const)
    await store.connectors.pin(server, tool, `${tool} of ${server}`, {})
  const { pins } = await registries.ground('ses_1')
  t.strictSame(
    [...pins].map(([server, own]) => [server, Object.fromEntries(own)]),
    [
      ['con_s', { a: 'a of con_s', b: 'b of con_s' }],
      ['con_t', { a: 'a of con_t' }],
    ],
  )
})

t.test('kept registries are bounded by the number of their tools, however small', (t) => {
  const registries = alone({} as RegistriesDeps['store'])
  const tools = Array<RegistryTool>(20_000).fill({ description: '', parameters: {} } as RegistryTool)
  for (const i of Array(8).keys())
    registries.keep({ session_id: `ses_${i}`, revision: 1, updated_at: '', tools })
  const kept = [...Array(8).keys()].filter((i) => registries.keptRevision(`ses_${i}`) === 1)
  t.strictSame(kept, [2, 3, 4, 5, 6, 7])
  t.end()
})

t.test('a kept registry is read again only once a newer one is known of', async (t) => {
  const { store } = createMemory()
  let reads = 0
  const { get } = store.registry
  const counted = { ...store.registry, get: (session: string) => get(session).finally(() => reads++) }
  const registries = alone({ registry: counted })
  for (const _ of [1, 2]) await registries.current('ses_1')
  t.equal(reads, 1)
  registries.noteRevision('ses_1', 1)
  await registries.current('ses_1')
  t.equal(reads, 2)
})

t.test('sessions that are changed together are written once, and those that were not are told', async (t) => {
  const { store, written } = createMemory()
  const { put } = store.registry
  store.registry.put = (changes) => put(changes.filter(({ session_id }) => session_id !== 'ses_2'))
  const registries = alone(store)
  t.strictSame(await registries.changeTogether(['ses_1', 'ses_2', 'ses_3'], OTHER), ['ses_2'])
  t.strictSame(
    written.map(({ session_id }) => session_id),
    ['ses_1', 'ses_3'],
  )
})

t.test('the tools of a session that is gone are not found, and nothing is written', async (t) => {
  const { store, written } = createMemory()
  const registries = alone(store)
  store.registry.grounds = async () => ({ sessions: [], pins: [] })
  const gone = { code: 'session_not_found' }
  await t.rejects(registries.newest('ses_1'), gone)
  await t.rejects(registries.change('ses_1', OTHER), gone)
  t.strictSame(await registries.changeTogether(['ses_1'], OTHER), [])
  t.strictSame(written, [])
})

t.test('a revision whose event is lost holds, and the next one is announced', async (t) => {
  const { create } = replicas()
  const told: number[] = []
  const here = create(async (_, { tools_revision }) => {
    if (tools_revision === 1) throw new Error('the bus is away')
    told.push(tools_revision)
  })
  t.match(await here.change('ses_1', OTHER), { row: { revision: 1 } })
  await here.change('ses_1', OTHER)
  t.strictSame(told, [2])
})

t.test('a revision is announced once it is seen, though the store failed when it was written', async (t) => {
  const { store, rows } = createMemory()
  rows.set('ses_1', { session_id: 'ses_1', revision: 5, updated_at: '', tools: [] })
  const told: number[] = []
  const sayToolsChanged = async (session: string, delta: ToolsDelta) => {
    told.push(delta.tools_revision)
    await registries.ground(session)
  }
  const registries = createRegistries({ store, sayToolsChanged, log })
  const { put } = store.registry
  const failing = async (effect: RegistriesDeps['store']['registry']['put']) => {
    store.registry.put = async (changes) => {
      store.registry.put = put
      await effect(changes)
      throw new BatonError('unavailable', 'away')
    }
    await t.rejects(registries.change('ses_1', OTHER), { code: 'unavailable' })
    for (const _ of [1, 2]) await registries.ground('ses_1')
  }
  await failing(async () => [])
  t.strictSame(told, [], 'nothing was written')
  await registries.change('ses_1', OTHER)
  t.strictSame(told, [6], 'a repeat that is answered announces it alone')
  let late = () => put([])
  await failing(async (changes) => {
    late = () => put(changes)
    return []
  })
  await late()
  await registries.ground('ses_1')
  t.strictSame(told, [6, 7], 'it was written only after it was looked for')
  await failing(put)
  t.strictSame(told, [6, 7, 8])
  await failing(async (changes) => {
    const written = await put(changes)
    for (const revision of [9, 8]) registries.noteAnnounced('ses_1', revision)
    return written
  })
  await failing((changes) =>
    put(changes.map((one) => ({ ...one, tools: [{ canonical_name: 's.b' } as RegistryTool] }))),
  )
  t.strictSame(told, [6, 7, 8], 'another replica wrote the same, and something else')
})

t.test('a revision is announced after the revision before it, which another replica made', async (t) => {
  const { rows, create } = replicas()
  const { opened, open } = gate()
  const told: number[] = []
  const here = create(async (session, { tools_revision }) => {
    await opened
    told.push(tools_revision)
    there.noteAnnounced(session, tools_revision)
  })
  const there = create(async (_, { tools_revision }) => void told.push(tools_revision))
  const first = here.change('ses_1', OTHER)
  await eventually(() => rows.get('ses_1')?.revision === 1)
  const second = there.change('ses_1', OTHER)
  await eventually(() => rows.get('ses_1')?.revision === 2)
  // As much as a replica under load may be late
  await sleep(500)
  t.strictSame(told, [])
  open()
  await Promise.all([first, second])
  t.strictSame(told, [1, 2])
})

t.test('a revision is announced as soon as the one before it is known to be', async (t) => {
  // The time after which nobody waits any longer never comes.
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const { moveClock, create } = replicas()
  const told: number[] = []
  const there = create(async (_, { tools_revision }) => void told.push(tools_revision))
  void create(() => new Promise(() => {})).change('ses_1', OTHER)
  await new Promise(setImmediate)
  moveClock(-60_000)
  void there.change('ses_1', OTHER)
  await new Promise(setImmediate)
  t.strictSame(told, [])
  there.noteAnnounced('ses_1', 1)
  await new Promise(setImmediate)
  t.strictSame(told, [2])
})

t.test('a replica does not wait forever for another replica to announce its revision', async (t) => {
  const { rows, moveClock, create } = replicas()
  const told: number[] = []
  const there = create(async (_, { tools_revision }) => void told.push(tools_revision))
  void create(() => new Promise(() => {})).change('ses_1', OTHER)
  await eventually(() => rows.get('ses_1')?.revision === 1)
  await there.change('ses_1', OTHER)
  t.strictSame(told, [2])

  void create(() => new Promise(() => {})).change('ses_1', OTHER)
  await eventually(() => rows.get('ses_1')?.revision === 3)
  moveClock(-60_000)
  await there.change('ses_1', OTHER)
  t.strictSame(told, [2, 4], 'the same holds if the clock of the store is set back meanwhile')
})
