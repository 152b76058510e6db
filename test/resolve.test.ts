/** Names that are slow to be found, or not found at all. */
import type { LookupAddress } from 'node:dns'
import { setImmediate as immediate } from 'node:timers/promises'
import t from 'tap'
import { lookupBy, type Resolve, remembering, sharing } from '../src/resolve.ts'

const addresses = (...list: string[]): LookupAddress[] =>
  list.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }))

/** A resolver of the system that answers when a test tells it to. */
function system() {
  const asked: { hostname: string; answer(found: LookupAddress[]): void; fail(error: Error): void }[] = []
  const resolve: Resolve = (hostname) =>
    new Promise((answer, fail) => {
      asked.push({ hostname, answer, fail })
    })
  return { asked, resolve }
}

t.test('callers who ask for the same name at once wait for the same answer', async (t) => {
  const { asked, resolve } = system()
  const shared = sharing(resolve)
  const both = [shared('a.test'), shared('a.test')]
  const other = shared('b.test')
  t.same(
    asked.map(({ hostname }) => hostname),
    ['a.test', 'b.test'],
  )
  asked[0]?.answer(addresses('192.0.2.1'))
  t.same(await Promise.all(both), [addresses('192.0.2.1'), addresses('192.0.2.1')])
  asked[1]?.fail(new Error('none'))
  await t.rejects(other, { message: 'none' })

  const again = shared('a.test')
  t.equal(asked.length, 3, 'an answer serves only the callers who waited for it')
  asked[2]?.answer(addresses('192.0.2.2'))
  t.same(await again, addresses('192.0.2.2'))
  void shared('b.test')
  t.equal(asked.length, 4, 'a failure is told only to the callers who waited for it')
})

t.test('a name that was found before keeps its addresses while no answer comes', async (t) => {
  const { asked, resolve } = system()
  const remembered = remembering(resolve, 20)
  const first = remembered('a.test')
  asked[0]?.answer(addresses('192.0.2.1'))
  t.same(await first, addresses('192.0.2.1'))

  t.same(await remembered('a.test'), addresses('192.0.2.1'), 'the second question hangs')
  const refused = remembered('a.test')
  asked[2]?.fail(new Error('the servers are away'))
  t.same(await refused, addresses('192.0.2.1'))

  asked[1]?.answer(addresses('192.0.2.2'))
  await immediate()
  t.same(await remembered('a.test'), addresses('192.0.2.2'), 'a late answer is remembered, too')
  const moved = remembered('a.test')
  asked[4]?.answer(addresses('192.0.2.3'))
  t.same(await moved, addresses('192.0.2.3'), 'an answer in time is what counts')
})

t.test('a name that was never found waits for its answer, and fails with it', async (t) => {
  const { asked, resolve } = system()
  const remembered = remembering(resolve, 1)
  const late = remembered('a.test')
  setTimeout(() => asked[0]?.answer(addresses('192.0.2.1')), 20)
  t.same(await late, addresses('192.0.2.1'))
  const failed = remembered('b.test')
  asked[1]?.fail(new Error('none'))
  await t.rejects(failed, { message: 'none' })
})

t.test('addresses are handed out as a connection asks for them', async (t) => {
  const found = addresses('192.0.2.1', '2001:db8::1')
  const ask = (options: { all?: boolean; family?: number }, given = found) =>
    new Promise((done) => lookupBy(async () => given)('a.test', options, (...answer) => done(answer)))
  t.same(await ask({ all: true }), [null, found])
  t.same(await ask({ all: true, family: 6 }), [null, addresses('2001:db8::1')])
  t.same(await ask({}), [null, '192.0.2.1', 4])
  t.match(await ask({ family: 6 }, addresses('192.0.2.1')), [{ code: 'ENOTFOUND' }, ''])
  t.match(await ask({ all: true }, []), [{ code: 'ENOTFOUND', message: 'a.test has no address' }, ''])
})
