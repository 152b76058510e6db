/** Appends to a Redis that is away, slow, or only thought to be away. These tests run without a Redis. */
import { mock } from 'node:test'
import { pino } from 'pino'
import t from 'tap'
import { createAppends } from '../../src/bus/redis/appends.ts'
import { createLink, type Link } from '../../src/bus/redis/link.ts'
import type { Group, Scripts } from '../../src/bus/redis/scripts.ts'
import { delta } from '../contracts/bus-bed.ts'

/** Appends in place of whose Redis a function takes the sizes of a batch's groups. */
function appendsTo(take: (sizes: number[]) => void) {
  const link = { persist: (attempt: () => Promise<unknown>) => attempt() } as unknown as Link
  const scripts = {
    async append(_: number, groups: Group[]) {
      take(groups.map(({ events }) => events.length))
      return groups.map(() => null)
    },
  } as unknown as Scripts
  return createAppends(link, scripts, undefined)
}

t.test('after Redis was away the lost logs of many sessions begin anew in batches', async (t) => {
  const calls: number[] = []
  const { append, resetBroken } = appendsTo((sizes) => {
    calls.push(sizes.length)
    if (calls.length < 3) throw new Error('away')
  })
  await Promise.allSettled(Array.from({ length: 600 }, (_, i) => append(`ses_${i}`, [delta(1)])))
  resetBroken()
  await append('ses_last', [])
  t.same(calls, [500, 100, 500, 101])
})

t.test('the events of one append stay together, even if they are more than a batch takes', async (t) => {
  const calls: number[][] = []
  const { append } = appendsTo((sizes) => calls.push(sizes))
  const said = [3, 600, 1].map((count) =>
    append(
      'ses_1',
      Array.from({ length: count }, () => delta(1)),
    ),
  )
  await Promise.all(said)
  t.same(calls, [[3], [600], [1]])
})

t.test('a process that was frozen tries again, even if the time for its attempts is over', async (t) => {
  const nothing = () => {}
  const { persist, close } = createLink({
    url: 'redis://127.0.0.1:1',
    log: pino({ level: 'silent' }),
    onMessage: nothing,
    onUp: nothing,
    onMissed: nothing,
  })
  t.teardown(close)
  let clock = 0
  mock.method(performance, 'now', () => clock)
  t.teardown(() => mock.restoreAll())
  let tries = 0
  const answer = persist(async () => {
    clock += 60_000
    if (++tries < 3) throw new Error('the connection was given up meanwhile')
    return 'there'
  })
  t.equal(await answer, 'there')
})
