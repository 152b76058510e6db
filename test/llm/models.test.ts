/** Lists of models, asked for seldom. */
import { mock } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import type { ReportedModel } from '../../src/provider.ts'
import { eventually, gate } from '../waiting.ts'
import { type Answer, bench, KEY, status, upstreamServer, vendor } from './made-up-vendor.ts'

t.test('lists of models', async (t) => {
  const list = [{ id: 'one', max_output_tokens: 1000 }, { id: 'two' }]
  const caller = { facts: { id: 'cred_1' }, secret: async () => ({ api_key: KEY }) }

  t.test('are asked for once an hour and credential, however many want them', async (t) => {
    const server = await upstreamServer(
      t,
      status(200, JSON.stringify(list), { 'content-type': 'application/json' }),
    )
    let time = 0
    const { llm } = bench(t, server.url, { now: () => time })
    const known = (id: string) => {
      llm.models.ask(vendor, { ...caller, facts: { id }, headers: { 'x-team': 'research', 'x-list': '0' } })
      return llm.models.known(vendor, { id }, 'one')
    }
    t.equal(known('cred_1'), undefined, 'unknown at first, and nobody waits')
    await eventually(() => known('cred_1') !== undefined)
    t.same(known('cred_1'), list[0])
    t.equal(llm.models.known(vendor, caller.facts, 'three'), undefined)
    t.equal(server.requests.length, 1)
    t.match(server.requests[0], {
      method: 'GET',
      url: '/models',
      headers: { 'x-team': 'research', 'x-list': '1', authorization: `Bearer ${KEY}` },
    })
    await eventually(() => known('cred_2') !== undefined)
    t.equal(server.requests.length, 2, 'each credential has its own list')
    time = 3_600_001
    t.same(known('cred_1'), list[0], 'an old list answers while it is renewed')
    await eventually(() => server.requests.length === 3)
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
    const known = () => {
      llm.models.ask(vendor, caller)
      return llm.models.known(vendor, caller.facts, 'one')
    }
    for (let count = 0; count < 50; count++) {
      t.equal(known(), undefined)
      await sleep(1)
    }
    t.equal(server.requests.length, 1)
    await eventually(() => {
      time += 60_001
      return known() !== undefined
    })
    t.same(known(), list[0])
    t.equal(server.requests.length, 3)
  })

  t.test('that do not end are given up, and asked for again', async (t) => {
    mock.timers.enable({ apis: ['setTimeout'] })
    t.teardown(() => mock.timers.reset())
    const { opened: closed, open: gone } = gate()
    const endless: Answer = (response) => response.once('close', gone).write(' ')
    const server = await upstreamServer(t, endless, status(200, JSON.stringify(list)))
    let time = 0
    const { llm } = bench(t, server.url, { now: () => time })
    const known = () => {
      llm.models.ask(vendor, caller)
      return llm.models.known(vendor, caller.facts, 'one')
    }
    t.equal(known(), undefined)
    await eventually(() => server.requests.length > 0)
    mock.timers.tick(15_000)
    await closed
    await eventually(() => {
      time += 60_001
      return known() !== undefined
    })
    t.equal(server.requests.length, 2)
  })

  t.test('are completed by what refusals tell, for an hour from the first', async (t) => {
    const server = await upstreamServer(t, status(200, JSON.stringify(list)))
    let time = 0
    const { llm } = bench(t, server.url, { now: () => time })
    const { models } = llm
    const known = (id = 'one', facts = caller.facts, deployment = vendor) =>
      models.known(deployment, facts, id)
    const learn = (model: ReportedModel) => models.learn(vendor, caller.facts, model)
    t.equal(learn({ id: 'one', refused: { top_p: 'any' } }), true)
    t.equal(learn({ refused: { top_p: 'any' }, id: 'one' }), false, 'another call has learned it already')
    t.strictSame(known(), { id: 'one', refused: { top_p: 'any' } })
    models.ask(vendor, caller)
    await eventually(() => known('two') !== undefined)
    t.strictSame(known(), { id: 'one', max_output_tokens: 1000, refused: { top_p: 'any' } })
    time = 3_000_000
    const more = { id: 'one', max_output_tokens: 500, efforts: ['low'] }
    t.equal(learn(more), true)
    t.strictSame(known(), more, 'a refusal counts more than the list')
    t.strictSame(known('two'), { id: 'two' })
    t.equal(known('one', { id: 'cred_2' }), undefined, 'a refusal counts for one credential')
    t.equal(
      known('one', caller.facts, { ...vendor, id: 'other' }),
      undefined,
      'a refusal counts for one deployment',
    )
    time = 3_599_999
    t.strictSame(known(), more)
    time++
    t.strictSame(known(), list[0], 'a later refusal does not keep the first one longer')
    t.equal(learn(more), true)
    time += 3_599_999
    t.strictSame(known(), more)
  })

  t.test('are empty for a vendor that has no list', async (t) => {
    const { models: _, ...without } = vendor
    const { llm } = bench(t, 'http://127.0.0.1:1')
    llm.models.ask(without, caller)
    t.equal(llm.models.known(without, caller.facts, 'one'), undefined)
  })
})
