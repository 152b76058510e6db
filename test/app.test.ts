/** The gateway as a whole, before and after it listens. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pino } from 'pino'
import t from 'tap'
import { createApp } from '../src/app.ts'
import { loadConfig } from '../src/config/load.ts'
import { openStore } from '../src/store/open.ts'
import { LAPSED, runningTurn } from './contracts/store-rows.ts'

t.test('what others lost is taken over by a gateway that listens, and not before', async (t) => {
  const dataDir = mkdtempSync(join(tmpdir(), 'baton-app-'))
  t.teardown(() => rmSync(dataDir, { recursive: true, force: true }))
  const store = await openStore({ databaseUrl: null, dataDir, poolSize: 1 })
  const { turn } = await runningTurn(store, { owner: 'local', admin: true }, LAPSED)
  await store.close()

  const { config } = loadConfig({ BATON_DATA_DIR: dataDir }, dataDir)
  const app = await createApp(config, { log: pino({ level: 'silent' }) })
  t.teardown(() => app.close())
  const state = async () => {
    const answer = await app.http.inject({ url: `/v1/turns/${turn.id}`, headers: { host: 'localhost' } })
    return answer.json().state
  }
  // A scan's statements would stand before these.
  for (let i = 0; i < 5; i++) t.equal(await state(), 'running')
  await app.http.listen({ host: '127.0.0.1', port: 0 })
  // Its provider is none of the gateway's.
  while ((await state()) !== 'failed') await new Promise((resolve) => setTimeout(resolve, 10))
})
