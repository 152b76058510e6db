/** A kept tool list: when it is asked for again. */
import t from 'tap'
import type { ListedTools } from '../../src/mcp/connection.ts'
import type { McpServerInfo, McpServerSpec } from '../../src/mcp/contract.ts'
import { createListing } from '../../src/mcp/listing.ts'

const spec: McpServerSpec = { key: 'k', name: 's', transport: 'stdio', allowPrivate: false }

/** A listing whose requests a test answers. */
function served() {
  const time = { now: 1_000 }
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
    () => time.now,
  )
  const get = async () => (await listing.get(spec, false)).tools[0]?.name
  return { listing, requests, time, get }
}

t.test('a list whose change was announced while it was read is asked for again', async (t) => {
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

t.test('who waits for the request after one that fails is served by its own', async (t) => {
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
