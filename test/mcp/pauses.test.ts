/** How often a server is asked, and how often it is heard: back-off and announcements. */
import { mock } from 'node:test'
import t from 'tap'
import { createAnnouncer } from '../../src/mcp/announcer.ts'
import { createBackoff } from '../../src/mcp/backoff.ts'

t.test('after three failures in a row the pauses grow at random up to a minute', (t) => {
  let clock = 0
  const backoff = createBackoff(
    () => 1,
    () => clock,
  )
  backoff.failed()
  backoff.failed()
  t.equal(backoff.waitMs(), 0, 'two failures cost nothing')
  backoff.failed()
  t.equal(backoff.waitMs(), 4_000)
  clock += 4_000
  t.equal(backoff.waitMs(), 0, 'one attempt is allowed after the pause')
  for (let i = 0; i < 30; i++) backoff.failed()
  t.equal(backoff.waitMs(), 60_000)
  backoff.succeeded()
  t.equal(backoff.waitMs(), 0)
  t.end()
})

t.test('a pause is no longer where the clock is set back', (t) => {
  const backoff = createBackoff(() => 1)
  for (let i = 0; i < 3; i++) backoff.failed()
  const before = Date.now() - 86_400_000
  mock.method(Date, 'now', () => before)
  t.teardown(() => mock.restoreAll())
  t.ok(backoff.waitMs() <= 4_000)
  t.end()
})

t.test('announcements: the first at once, one per interval, the last never lost', async (t) => {
  const announcer = createAnnouncer(30)
  t.teardown(() => announcer.stop())
  const heard: string[] = []
  let wake = (): void => {}
  const unsubscribe = announcer.subscribe((key) => {
    heard.push(key)
    wake()
  })
  for (let i = 0; i < 1_000; i++) announcer.announce('a')
  announcer.announce('b')
  t.same(heard, ['a', 'b'])
  // The announcer's timers keep no process alive, so something else has to.
  const alive = setInterval(() => {}, 1_000)
  t.teardown(() => clearInterval(alive))
  await new Promise<void>((resolve) => {
    wake = resolve
  })
  t.same(heard, ['a', 'b', 'a'], 'a trailing one for those that came meanwhile')
  unsubscribe()
  announcer.announce('c')
  t.equal(heard.length, 3)
})
