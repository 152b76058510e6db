/** What the doctor finds out about logins, and what it says to do. */
import { mock } from 'node:test'
import t from 'tap'
import { migrate, readMigrations } from '../../src/store/migrate.ts'
import { guardedServer } from '../credentials/connector-world.ts'
import { visit } from '../credentials/world.ts'
import { createClient } from '../e2e/client.ts'
import { startRig } from '../mcp/servers/rig.ts'
import { scratch } from '../scratch.ts'
import { emptyDatabase } from '../store/fresh.ts'
import { wholeGateway } from '../whole-gateway.ts'
import { run } from './running.ts'

t.test('the doctor renews the login at an MCP server before it reports on the server', async (t) => {
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

t.test('the command line leaves the schema of an older version to the start of a gateway', async (t) => {
  const env = { BATON_DATA_DIR: scratch(t), BATON_DRAIN_SECONDS: '0' }
  const db = await emptyDatabase(t, env.BATON_DATA_DIR)
  await migrate(db, readMigrations().slice(0, -1))
  await db.query(`insert into setting (name, value) values ('of_the_older_version', '')`)
  await db.close()

  const refused = /has the schema of an older version/
  t.match(await run(env, 'doctor'), { code: 1, out: [/^ok/, refused] })
  t.match(await run(env, 'keys list'), { code: 1, err: refused }, 'also where it was asked before')
  await (await wholeGateway(t, env)).close()
  t.match(await run(env, 'doctor'), { code: 0 })
})

t.test('the doctor hears why a server was too slow, however late it began to ask', async (t) => {
  const rig = await startRig(t)
  rig.on('initialize', () => mock.timers.tick(6_000))
  const server = 'BATON__TOOLBOX__MCPS__0__'
  const env = {
    BATON_DATA_DIR: scratch(t),
    [`${server}NAME`]: 'slow',
    [`${server}TRANSPORT`]: 'streamable_http',
    [`${server}URL`]: rig.url,
    [`${server}MODE`]: 'strict',
  }
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const { out } = await run(env, 'doctor')
  t.match(out, [/^ok/, /^ok/, /^BAD {3}MCP server slow: did not connect in 5000 ms/])
})

t.test('the doctor names the command that makes a login anew for the owner of the login', async (t) => {
  const env = {
    BATON_DATA_DIR: scratch(t),
    BATON_DRAIN_SECONDS: '0',
    BATON_AUTH: 'keys',
    BATON_ADMIN_KEY: 'the-bootstrap-admin-key',
    BATON_ENABLE_OAUTH: 'anthropic',
  }
  const gateway = await wholeGateway(t, env)
  const url = await gateway.listen()
  const api = createClient(url)
  const as = (key: string, path: string, body: object) =>
    api.call('POST', path, body, { authorization: `Bearer ${key}` })
  const { key } = (await as(env.BATON_ADMIN_KEY, '/v1/keys', { owner: 'ann', scopes: ['chat'] })).body
  const ended = {
    provider: 'anthropic',
    kind: 'oauth',
    access_token: 'spent',
    expires_at: '2020-01-01T00:00:00Z',
  }
  for (const owner of [key, env.BATON_ADMIN_KEY]) await as(owner, '/v1/credentials', ended)
  const said = async (line: string) => (await run(env, line)).out.slice(-3, -1)
  t.match(await said(`doctor --url ${url}`), [
    /needs its login anew .*: baton login anthropic --key <a key of admin>$/,
    /needs its login anew .*: baton login anthropic --key <a key of ann>$/,
  ])
  await gateway.close()
  t.match(await said('doctor'), [
    /needs its login anew .*: baton login anthropic$/,
    /needs its login anew .*: baton login anthropic --owner ann$/,
  ])
})
