/** What the doctor finds of servers that want a login, on the store itself. */
import t from 'tap'
import { guardedServer } from '../credentials/connector-world.ts'
import { visit } from '../credentials/world.ts'
import { createClient } from '../e2e/client.ts'
import { scratch } from '../scratch.ts'
import { wholeGateway } from '../whole-gateway.ts'
import { run } from './running.ts'

t.test('the doctor renews the login at a server, as a gateway does, before it speaks of it', async (t) => {
  const guarded = await guardedServer(t)
  const env = { BATON_DATA_DIR: scratch(t), BATON_DRAIN_SECONDS: '0' }
  const gateway = await wholeGateway(t, env)
  const api = createClient(await gateway.listen())
  const body = { name: 'docs', transport: 'streamable_http', url: guarded.url, auth: { type: 'oauth' } }
  const { id } = await api.post('/v1/connectors', body)
  const { authorization_url } = await api.post(`/v1/connectors/${id}/login`)
  await fetch(await visit(authorization_url))
  await gateway.close()

  guarded.revoke()
  const fine = { code: 0, out: [/^ok/, /^ok/, /^ok {4}MCP server docs$/] }
  t.match(await run(env, 'doctor'), fine)
  t.match(await run(env, 'doctor'), fine, 'the renewed login is kept')
  t.equal(guarded.grants.refresh_token, 1)

  guarded.revoke({ refresh: true })
  t.match(await run(env, 'doctor'), {
    code: 1,
    out: [/^ok/, /^ok/, /^BAD {3}MCP server docs: needs a login: POST \/v1\/connectors\/con_.*invalid_grant/],
  })
})
