/** How often a server is asked, and how often its announcements are told: back-off and announcer. */
import { mock } from 'node:test'
import t from 'tap'
import { createAnnouncer } from '../../src/mcp/announcer.ts'
import { McpError, type McpErrorKind } from '../../src/mcp/contract.ts'
import { createHealth } from '../../src/mcp/health.ts'

const BUDGET = { connectMs: 5_000, attemptMs: 60_000, random: () => 1 }
const down = new McpError('unavailable', 'it is away', { sent: false })

t.test('after three failures in a row the pauses grow up to a minute', (t) => {
  let clock = 0
  const health = createHealth({ ...BUDGET, now: () => clock })
  health.failed(down, 'attempt')
  health.failed(down, 'attempt')
  t.equal(health.waitMs(), 0, 'two failures make no pause')
  health.failed(down, 'attempt')
  t.equal(health.waitMs(), 4_000)
  clock += 4_000
  t.equal(health.waitMs(), 0, 'one attempt is allowed after the pause')
  for (let i = 0; i < 30; i++) health.failed(down, 'attempt')
  t.equal(health.waitMs(), 60_000)
  health.succeeded()
  t.equal(health.waitMs(), 0)
  t.end()
})

t.test('a server is told slow, stuck or away by the failures that show it, and by no others', (t) => {
  const health = createHealth({ ...BUDGET, now: () => 0 })
  const fail = (kind: McpErrorKind, what: 'attempt' | 'call' = 'attempt') =>
    health.failed(new McpError(kind, `It is ${kind}.`, { sent: true }), what)
  for (const patience of [5_000, 10_000, 20_000]) {
    t.equal(health.patienceMs(), patience)
    fail('timeout', 'call')
    health.reconnects()
    fail('timeout')
  }
  for (let i = 0; i < 30; i++) fail('timeout')
  t.equal(health.patienceMs(), 60_000)
  health.took(5_000)
  t.equal(health.patienceMs(), 60_000)
  health.took(4_999)
  fail('disconnected')
  t.equal(health.patienceMs(), 5_000)

  for (const recovers of [health.succeeded, health.reconnects]) {
    recovers()
    for (const what of ['call', 'attempt'] as const) fail('timeout', what)
    fail('disconnected')
    t.notOk(health.isStuck())
    fail('timeout', 'call')
    t.ok(health.isStuck())
  }

  health.succeeded()
  fail('protocol', 'call')
  fail('cancelled')
  t.equal(health.last(), null, 'it answered, or nobody waited for it')
  fail('protocol')
  t.same(health.last(), { kind: 'protocol', message: 'It is protocol.' })
  health.rests()
  t.equal(health.last(), null)

  health.succeeded()
  for (let i = 0; i < 4; i++) fail('unavailable', 'call')
  for (let i = 0; i < 4; i++) fail('auth_required')
  t.equal(health.waitMs(), 0)
  t.match(health.last(), { kind: 'auth_required' })
  for (let i = 0; i < 3; i++) fail('disconnected')
  t.equal(health.waitMs(), 4_000)
  health.skipPause()
  t.equal(health.waitMs(), 0)
  fail('disconnected')
  t.equal(health.waitMs(), 8_000)
  health.succeeded()
  t.equal(health.waitMs(), 0)
  t.equal(health.last(), null)
  for (let i = 0; i < 2; i++) fail('disconnected')
  t.equal(health.waitMs(), 0, 'it counts anew')
  t.end()
})

t.test('a pause is a random part of its longest, so that gateways do not come back together', (t) => {
  const pauseFor = (part: number, failures: number) => {
    const health = createHealth({ ...BUDGET, random: () => part, now: () => 0 })
    for (let i = 0; i < failures; i++) health.failed(down, 'attempt')
    return health.waitMs()
  }
  t.strictSame(
    [0, 0.25, 0.5].map((part) => pauseFor(part, 3)),
    [0, 1_000, 2_000],
  )
  t.strictSame(
    [0, 0.25, 0.5].map((part) => pauseFor(part, 30)),
    [0, 15_000, 30_000],
  )
  t.end()
})

t.test('a pause does not get longer when the clock is set back', (t) => {
  const health = createHealth(BUDGET)
  for (let i = 0; i < 3; i++) health.failed(down, 'attempt')
  const before = Date.now() - 86_400_000
  mock.method(Date, 'now', () => before)
  t.teardown(() => mock.restoreAll())
  t.ok(health.waitMs() <= 4_000)
  t.end()
})

t.test('the first announcement is told at once, and later ones once per interval', async (t) => {
  const announcer = createAnnouncer(30)
  t.teardown(() => announcer.stop())
  const heard: string[] = []
  let wake = (): void => {}
  announcer.subscribe((key) => {
    heard.push(key)
    wake()
  })
  for (let i = 0; i < 1_000; i++) announcer.announce('a')
  announcer.announce('b')
  t.same(heard, ['a', 'b'])
  // The announcer's timers do not keep a process alive, so this timer has to.
  const alive = setInterval(() => {}, 1_000)
  t.teardown(() => clearInterval(alive))
  await new Promise<void>((resolve) => {
    wake = resolve
  })
  t.same(heard, ['a', 'b', 'a'], 'one announcement follows for all that came meanwhile')
})
