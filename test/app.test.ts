/** The gateway as a whole, before and after it listens. */
import t from 'tap'
import { LAPSED, runningTurn } from './contracts/store-rows.ts'
import { scratch } from './scratch.ts'
import { freshDatabase, storeOn } from './store/fresh.ts'
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
