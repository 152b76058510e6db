/** What Baton does while a vendor or the store is away. */
import t from 'tap'
import { sha256 } from '../../src/chat/json.ts'
import { createBreaker } from '../../src/credentials/breaker.ts'
import { insist, shared } from '../../src/credentials/renew-once.ts'
import { BatonError } from '../../src/errors.ts'
import { eventually, gate } from '../waiting.ts'
import { world } from './shared-world.ts'
import { begun, ME, sealedOf } from './world.ts'

const { store, openai } = world
const away = () => new BatonError('unavailable', 'The database is not available.')

t.test(
  'after failures of five logins one caller asks at a time, and no sooner than the vendor wants',
  async (t) => {
    let clock = 0
    const breaker = createBreaker(() => clock)
    for (let i = 0; i < 9; i++) breaker.failed('odd', 0)
    for (const login of ['one', 'two', 'three', 'four']) {
      t.equal(breaker.waitMs(), 0)
      breaker.failed(login, 10_000)
    }
    t.equal(breaker.waitMs(), 30_000)
    clock = 30_000
    t.equal(breaker.waitMs(), 0, 'one caller asks')
    t.equal(breaker.waitMs(), 30_000, 'a caller that comes meanwhile waits')
    breaker.failed('one', 120_000)
    clock = 149_999
    t.equal(breaker.waitMs(), 1)
    clock = 150_000
    t.equal(breaker.waitMs(), 0)
    breaker.succeeded()
    for (const _ of [1, 2]) t.equal(breaker.waitMs(), 0)
  },
)

t.test('work that failed is begun again once the time is over for which its failure is kept', async (t) => {
  const works = new Map<string, Promise<void>>()
  let begun = 0
  const work = async () => {
    begun++
    throw new Error('not this account')
  }
  const outcome = () => shared(works, 'login', work, 10).catch(({ message }: Error) => message)
  t.same([await outcome(), await outcome(), begun], ['not this account', 'not this account', 1])
  await eventually(() => works.size === 0)
  await outcome()
  t.equal(begun, 2)
  const unavailable = async () => {
    begun++
    throw away()
  }
  for (const _ of [1, 2]) await t.rejects(shared(works, 'other', unavailable, 60_000))
  t.equal(begun, 4, 'a store that was away is asked again at once')
})

t.test('a write that fails for an unknown reason is tried four times', async (t) => {
  for (const [failures, outcome] of [
    [3, 'written'],
    [4, 'failed'],
  ] as const) {
    let tries = 0
    const waits: number[] = []
    const write = async () => {
      t.equal(waits.length, tries, 'not before the pause is over')
      if (++tries <= failures) throw new Error('deadlock detected')
      return 'written'
    }
    const sleep = (ms: number) => new Promise(setImmediate).then(() => void waits.push(ms))
    const insisting = insist(write, sleep, new AbortController().signal)
    t.equal(await insisting.catch(() => 'failed'), outcome)
    t.strictSame(waits, [200, 400, 500], 'a store that is back is not waited for any longer')
  }
})

t.test('when the process ends, a write that the store does not take is tried once more', async (t) => {
  const ending = new AbortController()
  let tries = 0
  const write = async () => {
    if (++tries === 3) ending.abort()
    if (tries > 9) throw new Error('tried for ever')
    throw away()
  }
  await t.rejects(
    insist(
      write,
      async (_, { aborted }) => {
        if (aborted) throw new Error('aborted')
      },
      ending.signal,
    ),
    { code: 'unavailable' },
  )
  t.equal(tries, 4)
})

t.test('a write that begins as the process ends survives a lost connection, too', async (t) => {
  const write = failing(async () => 'written')
  t.equal(await insist(write, async () => {}, AbortSignal.abort()), 'written')
})

/** The first call of the verb fails before its work; with `after`, the second one fails after it. */
function failing<Given extends unknown[], T>(verb: (...given: Given) => Promise<T>, after = false) {
  let calls = 0
  return async (...given: Given): Promise<T> => {
    if (++calls === 1) throw away()
    const answer = await verb(...given)
    if (after && calls === 2) throw away()
    return answer
  }
}
/** A store that is away for a moment at every step between a login's answer and its end */
const shaky = (): typeof store => ({
  ...store,
  credentials: {
    ...store.credentials,
    preferred: failing(store.credentials.preferred),
    create: failing(store.credentials.create, true),
  },
  logins: {
    ...store.logins,
    take: failing(store.logins.take, true),
    finish: failing(store.logins.finish, true),
    poll: failing(store.logins.poll),
  },
})

t.test('a login is stored once, even if the store is away for a moment at every step', async (t) => {
  for (const provider of ['openai', 'anthropic', 'gemini']) {
    const replica = world.replica({ store: shaky(), sleep: async () => {} })
    const { state, at } = await begun(replica, provider)
    const view = await replica.logins.exchange(ME, provider, { state, pasted: at.href })
    t.match(await replica.logins.status(ME, provider, state), { state: 'done', credential_id: view.id })
    t.ok((await sealedOf(world, view.id)).refresh_token)
  }
  const { data } = await store.credentials.list(ME, { limit: 10 })
  t.same(
    data.map(({ provider }) => provider),
    ['gemini', 'anthropic', 'openai'],
  )
  for (const { id } of data) await store.credentials.delete(ME, id)
})

t.test('a device login ends once, even if the store is away for a moment at every step', async (t) => {
  const outcome = async (answer: (userCode: string) => void) => {
    const replica = world.replica({ store: shaky() })
    const { state, user_code = '' } = await replica.logins.authorize(ME, 'openai', 'device')
    answer(user_code)
    // The store is asked: a call for the status would have another replica look for the grant.
    const hash = sha256(state)
    return eventually(
      () => store.logins.get(hash),
      (login) => login?.state !== 'pending' && login?.state !== 'taken',
    )
  }
  const elsewhere = async () => {
    const { opened: isPolled, open } = gate()
    const poll: typeof store.logins.poll = async (hash, seconds) => {
      const login = await store.logins.poll(hash, seconds)
      if (login) await store.logins.take(login, login.sealed)
      open()
      return login
    }
    const replica = world.replica({ store: { ...store, logins: { ...store.logins, poll } } })
    const { state, user_code = '' } = await replica.logins.authorize(ME, 'openai', 'device')
    openai.denyDevice(user_code)
    await isPolled
    await replica.logins.close()
    return store.logins.get(sha256(state))
  }
  const { grantDevice, denyDevice } = openai
  const outcomes = await Promise.all([outcome(grantDevice), outcome(denyDevice), elsewhere()])
  t.match(outcomes, [{ state: 'done' }, { state: 'failed', error: /access_denied/ }, { state: 'taken' }])
  t.equal((await store.credentials.list(ME, { limit: 10 })).data.length, 1)
})

t.test('a login whose store stays away ends with the process, after one more try', async (t) => {
  let tries = 0
  const create = async () => {
    if (++tries > 9) throw new Error('tried for ever')
    throw away()
  }
  const replica = world.replica({
    store: { ...store, credentials: { ...store.credentials, create } },
    async sleep(_, signal) {
      if (tries === 3) void replica.logins.close()
      signal?.throwIfAborted()
    },
  })
  const { state, at } = await begun(replica, 'openai')
  await t.rejects(replica.logins.exchange(ME, 'openai', { state, pasted: at.href }), { code: 'unavailable' })
  t.equal(tries, 4)
  t.match(await replica.logins.status(ME, 'openai', state), { state: 'failed', error: /not available/ })
})
