/** Lists of models, asked for seldom. */
import t from 'tap'
import { bench, KEY, status, upstreamServer, vendor } from './made-up-vendor.ts'

t.test('lists of models', async (t) => {
  const list = [{ id: 'one', max_input_tokens: 1000 }, { id: 'two' }]
  const caller = { facts: { id: 'cred_1' }, secret: async () => ({ api_key: KEY }) }

  t.test('are asked for once an hour and credential, however many want them', async (t) => {
    const server = await upstreamServer(
      t,
      status(200, JSON.stringify(list), { 'content-type': 'application/json' }),
    )
    let time = 0
    const { llm } = bench(t, server.url, { now: () => time })
    t.equal(llm.reported(vendor, caller, 'one'), undefined, 'unknown at first, and nobody waits')
    const [a, b] = await Promise.all([llm.models(vendor, caller), llm.models(vendor, caller)])
    t.same(a, list)
    t.same(b, list)
    t.same(llm.reported(vendor, caller, 'one'), list[0])
    t.equal(llm.reported(vendor, caller, 'three'), undefined)
    t.equal(server.requests.length, 1)
    t.match(server.requests[0], {
      method: 'GET',
      url: '/models',
      headers: { 'x-list': '1', authorization: `Bearer ${KEY}` },
    })
    await llm.models(vendor, { ...caller, facts: { id: 'cred_2' } })
    t.equal(server.requests.length, 2, 'each credential has its own')
    time = 3_600_001
    t.same(llm.reported(vendor, caller, 'one'), list[0], 'an old list answers while it is renewed')
    await llm.models(vendor, caller)
    t.equal(server.requests.length, 3)
  })

  t.test('that fail are not asked for again within a minute', async (t) => {
    const server = await upstreamServer(
      t,
      status(500, 'down'),
      status(200, 'not json'),
      status(200, JSON.stringify(list)),
    )
    let time = 0
    const { llm } = bench(t, server.url, { now: () => time })
    await t.rejects(llm.models(vendor, caller), { code: 'upstream_overloaded' })
    await t.rejects(llm.models(vendor, caller), { code: 'upstream_overloaded' })
    t.equal(llm.reported(vendor, caller, 'one'), undefined)
    t.equal(server.requests.length, 1)
    time = 60_001
    await t.rejects(llm.models(vendor, caller), { code: 'upstream_rejected' })
    time = 120_002
    t.same(await llm.models(vendor, caller), list)
  })

  t.test('are empty for a vendor without one', async (t) => {
    const { models: _, ...without } = vendor
    const { llm } = bench(t, 'http://127.0.0.1:1')
    t.same(await llm.models(without, caller), [])
    t.equal(llm.reported(without, caller, 'one'), undefined)
  })
})
