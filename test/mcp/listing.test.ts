/** A kept tool list: when it is asked for again. */
import t from 'tap'
import type { ListedTools } from '../../src/mcp/connection.ts'
import type { McpServerInfo, McpServerSpec, ToolList } from '../../src/mcp/contract.ts'
import { createListing, type KeptList } from '../../src/mcp/listing.ts'
import { call, door, list, RAN, specOf } from './door.ts'
import { startRig } from './servers/rig.ts'

const spec: McpServerSpec = { key: 'k', name: 's', transport: 'stdio', allowPrivate: false }

function keeping(): KeptList & { drop(): void } {
  let kept: ToolList | null = null
  return {
    get: () => kept,
    put(list) {
      kept = list
    },
    drop() {
      kept = null
    },
  }
}

/** A listing whose requests a test answers. */
function served() {
  const time = { now: 1_000 }
  const kept = keeping()
  const requests: { answer(tool: string): void; fail(): void }[] = []
  const listing = createListing(
    () =>
      new Promise<ListedTools & { server: McpServerInfo }>((resolve, reject) => {
        requests.push({
          answer: (name) =>
            resolve({
              server: { name: 's', version: '1', protocol_version: 'p' },
              tools: [{ name, inputSchema: { type: 'object' } }],
              left_out: [],
            }),
          fail: () => reject(new Error('away')),
        })
      }),
    kept,
    () => time.now,
  )
  const get = async () => (await listing.get(spec, false)).tools[0]?.name
  return { listing, kept, requests, time, get }
}

t.test('a list whose change is announced while it is read is asked for again', async (t) => {
  const { listing, requests, get } = served()
  const first = get()
  listing.markChanged()
  requests[0]?.answer('old')
  t.equal(await first, 'old')
  t.ok(listing.isOutdated())
  const next = get()
  requests[1]?.answer('new')
  t.equal(await next, 'new')
  t.notOk(listing.isOutdated())
})

t.test('a list is read once more, however many changes are announced while it is read', async (t) => {
  const { listing, requests, get } = served()
  const first = get()
  const later = [1, 2, 3].map(() => {
    listing.markChanged()
    return get()
  })
  requests[0]?.answer('old')
  t.equal(await first, 'old')
  await new Promise(setImmediate)
  requests[1]?.answer('new')
  t.strictSame(await Promise.all(later), ['new', 'new', 'new'])
  t.equal(requests.length, 2)
  t.notOk(listing.isOutdated())
})

t.test(
  'a change that is announced while a list is read again makes one more request for all callers',
  async (t) => {
    const { listing, requests, get } = served()
    const first = get()
    listing.markChanged()
    const second = get()
    requests[0]?.answer('first')
    await first
    await new Promise(setImmediate)
    const shared = get()
    listing.markChanged()
    const third = [get(), get()]
    requests[1]?.answer('second')
    t.strictSame(await Promise.all([second, shared]), ['second', 'second'])
    await new Promise(setImmediate)
    requests[2]?.answer('third')
    t.strictSame(await Promise.all(third), ['third', 'third'])
    t.equal(requests.length, 3)
  },
)

t.test('a list is held still for many changes in a minute, and for no other announcements', async (t) => {
  const { listing, kept, requests, time, get } = served()
  const change = async (name: string, ms: number): Promise<void> => {
    time.now += ms
    listing.markChanged()
    const read = get()
    requests.at(-1)?.answer(name)
    await read
  }
  for (let i = 0; i < 15; i++) await change('same', 10)
  t.notOk(listing.isQuarantined(), 'the list did not change')
  for (let i = 0; i < 15; i++) await change(`slow ${i}`, 7_000)
  t.notOk(listing.isQuarantined(), 'they are fewer than ten in a minute')
  for (let i = 0; i < 15; i++) await change(`quick ${i}`, 5_000)
  t.ok(listing.isQuarantined())
  t.notOk(listing.isOutdated(), 'no turn waits for what is not asked for')
  kept.drop()
  const read = get()
  requests.at(-1)?.answer('new')
  t.equal(await read, 'new', 'without a kept list the server is asked')
})

t.test('a list is kept for five minutes, and then asked for again', async (t) => {
  const { requests, time, get } = served()
  const first = get()
  requests[0]?.answer('old')
  await first
  time.now += 299_000
  t.equal(await get(), 'old')
  time.now += 2_000
  const next = get()
  requests[1]?.answer('new')
  t.equal(await next, 'new')
})

t.test('a caller that waits for the next request is served although the current one fails', async (t) => {
  const { listing, requests, get } = served()
  const first = get()
  listing.markChanged()
  const next = get()
  requests[0]?.fail()
  await t.rejects(first)
  await new Promise(setImmediate)
  requests[1]?.answer('new')
  t.equal(await next, 'new')
})

t.test(
  'callers share one list request, an announcement makes another, and a flickering list is held still',
  async (t) => {
    let clock = 1_000
    let fetches = 0
    let name = 'first'
    let release = (): void => {}
    const listing = createListing(
      async () => {
        fetches++
        const seen = name
        await new Promise<void>((resolve) => {
          release = resolve
        })
        return {
          server: { name: 's', version: '1', protocol_version: 'p' },
          tools: [{ name: seen, inputSchema: { type: 'object' } }],
          left_out: [],
        }
      },
      keeping(),
      () => clock,
    )
    const both = [listing.get(spec, false), listing.get(spec, true)]
    t.equal(fetches, 1, 'two callers share one request')
    name = 'second'
    listing.markChanged()
    const later = listing.get(spec, true)
    release()
    for (const list of await Promise.all(both)) t.equal(list.tools[0]?.name, 'first')
    await new Promise(setImmediate)
    t.equal(fetches, 2, 'an announcement during a request makes a request after it')
    release()
    t.equal((await later).tools[0]?.name, 'second')
    t.equal((await listing.get(spec, false)).tools[0]?.name, 'second', 'a fresh list is not asked for again')
    t.equal(fetches, 2)

    for (let i = 0; i < 12; i++) {
      name = `version ${i}`
      const wanted = listing.get(spec, true)
      release()
      await wanted
    }
    t.equal(listing.isQuarantined(), false, 'changes that nobody announced do not count as flicker')

    const ask = async (as: string): Promise<string | undefined> => {
      name = as
      listing.markChanged()
      const asked = listing.get(spec, false)
      release()
      return (await asked).tools[0]?.name
    }
    for (let i = 0; i < 10; i++) t.equal(await ask(`change ${i}`), `change ${i}`)
    t.equal(listing.isQuarantined(), true)
    t.equal(await ask('one too many'), 'change 9', 'the list is held still after ten changes')
    const wanted = listing.get(spec, true)
    release()
    t.equal(
      (await wanted).tools[0]?.name,
      'one too many',
      'a caller that asks for a refresh gets the newest list',
    )
    clock += 61_000
    t.equal(listing.isQuarantined(), false)
    t.equal(await ask('calm again'), 'calm again')
  },
)

t.test('of kept lists that are too large together the oldest is dropped and asked for again', async (t) => {
  const rig = await startRig(t)
  rig.tools = [{ name: 'wordy', description: 'x'.repeat(10_000), inputSchema: { type: 'object' } }]
  const mcp = door(t, { mostListed: 25_000 })
  const specs = ['a', 'b', 'c'].map((key) => specOf(rig, { key }))
  for (const one of specs) await list(mcp, one)
  t.same(
    specs.map(({ key }) => mcp.cached(key)?.tools.length ?? null),
    [null, 1, 1],
  )
  t.equal(mcp.status('a').state, 'ready', 'the connection of the dropped list stays')
  t.match(await call(mcp, specOf(rig, { key: 'a' }), 'wordy'), RAN)
  t.equal((await list(mcp, specOf(rig, { key: 'a' }))).tools[0]?.name, 'wordy')
  t.same(
    specs.map(({ key }) => mcp.cached(key)?.tools.length ?? null),
    [1, null, 1],
  )
})
