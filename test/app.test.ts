/** The gateway as a whole, before and after it listens. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { ADMIN, connector, LAPSED, newSession, runningTurn } from './contracts/store-rows.ts'
import { scratch } from './scratch.ts'
import { freePort } from './servers.ts'
import { freshDatabase, freshStore, storeOn } from './store/fresh.ts'
import { eventually } from './waiting.ts'
import { wholeGateway } from './whole-gateway.ts'

t.test('a gateway takes over turns with a lapsed lease once it listens, and not before', async (t) => {
  const database = freshDatabase(t)
  const store = await storeOn(await database)
  const { turn } = await runningTurn(store, { owner: 'local', admin: true }, LAPSED)

  const app = await wholeGateway(t, { BATON_DATA_DIR: scratch(t) }, { database })
  const state = async () => {
    const answer = await app.http.inject({ url: `/v1/turns/${turn.id}`, headers: { host: 'localhost' } })
    return answer.json().state
  }
  // If it scanned already, the scan's statements would run before those of these requests.
  for (let i = 0; i < 5; i++) t.equal(await state(), 'running')
  await app.listen()
  // The gateway knows no such provider, so the turn fails.
  await eventually(async () => (await state()) === 'failed')
})

t.test('a start that its servers stop changes none of the configuration’s connectors', async (t) => {
  const dataDir = scratch(t)
  const before = await freshStore(t, { dataDir })
  const [docs] = await before.connectors.syncConfig([connector(ADMIN, 'docs', { origin: 'config' })])
  const { id } = await newSession(before, ADMIN)
  await before.connectors.bind(id, docs?.id ?? '', null)
  await before.close()

  const file = join(scratch(t), 'baton.yaml')
  const url = `http://127.0.0.1:${await freePort()}/mcp`
  writeFileSync(
    file,
    `toolbox: {mcps: [{name: away, transport: streamable_http, url: '${url}', mode: strict}]}`,
  )
  const start = wholeGateway(t, { BATON_DATA_DIR: dataDir, BATON_CONFIG: file })
  await t.rejects(start, /cannot start without/)

  const after = await freshStore(t, { dataDir })
  t.match(await after.connectors.bindings(id), [{ connector: { name: 'docs' } }])
  t.equal(await after.connectors.find(ADMIN, 'away'), null)
})
