/** Logins at MCP servers through whatever befalls a renewal: none is lost that could have been kept. */
import t from 'tap'
import { openConnector } from '../../src/credentials/connector-secret.ts'
import { connectorWorld, guardedServer } from './connector-world.ts'

const { vault, bench } = await connectorWorld(t)

const NEEDED = { kind: 'auth_required', message: /docs needs a login/ }

t.test('metadata that is unwell for a moment costs no login, and no refresh token is sent', async (t) => {
  const guarded = await guardedServer(t, { expires_in: 600, tenant: '/as' })
  const { replica, logIn, time, read } = await bench(t, guarded)
  const connector = await logIn()
  const ask = () => replica().authFor(connector).token()
  const first = await ask()
  time.ahead = 601_000
  const resource = '/.well-known/oauth-protected-resource/mcp'
  const issuer = '/.well-known/oauth-authorization-server/as'
  for (const [path, status, body] of [
    [resource, 500],
    [resource, 502],
    [resource, 503],
    [resource, 429],
    [resource, 404],
    [resource, 200, '<html>One moment, please</html>'],
    [issuer, 404],
    [issuer, 502],
    [issuer, 200, '<html>One moment, please</html>'],
  ] as const) {
    guarded.instead(path, { status, ...(body && { body }) })
    await t.rejects(ask(), { code: 'upstream_overloaded' }, `${path} ${status}`)
    guarded.instead(path, null)
  }
  t.same(guarded.grants, { authorization_code: 1 })
  t.not(await ask(), first)

  guarded.metadata({ resource: guarded.url, authorization_servers: [`${guarded.origin}/other`] })
  time.ahead = 1_300_000
  await t.rejects(ask(), NEEDED, 'the server itself names another')
  t.equal(openConnector(vault, await read()).oauth?.tokens, undefined)
  t.equal(guarded.grants.refresh_token, 1)
})
