/** What the tests of logins at MCP servers share: a store costs more than most of them. */
import t, { type Test } from 'tap'
import { type ConnectorLogins, createConnectorLogins } from '../../src/credentials/connector-logins.ts'
import { createVault } from '../../src/credentials/vault.ts'
import { createMcpOAuth } from '../../src/mcp/oauth.ts'
import type { Connector, Store } from '../../src/store/store.ts'
import { connector } from '../contracts/store-rows.ts'
import type { McpLoginsOptions } from '../emulators/oauth-mcp.ts'
import { freshStore } from '../store/fresh.ts'
import { guardedServer } from './guarded-server.ts'
import { visit } from './world.ts'

export const ANN = { owner: 'ann', admin: false }

export const vault = createVault([{ id: 'k1', key: new Uint8Array(32).fill(7) }])
export const store = await freshStore(t)

/** The store with some verbs of its connectors replaced. */
export const storeWith = (verbs: Partial<Store['connectors']>): Store => ({
  ...store,
  connectors: { ...store.connectors, ...verbs },
})

/** A guarded server's connector, as many replicas of the logins over it, and a login made by one of them. */
export async function bench(t: Test, options: Partial<McpLoginsOptions> = {}) {
  const guarded = await guardedServer(t, options)
  const time = { ahead: 0 }
  const now = () => Date.now() + time.ahead
  const oauth = createMcpOAuth({ now })
  const row = { id: 'con_1', url: guarded.url, auth: { type: 'oauth' }, secret: null } as const
  const made = await store.connectors.create(connector(ANN, 'docs', row))
  if (made === 'name_taken') throw new Error('the name is taken')
  t.teardown(async () => {
    await oauth.close()
    await store.connectors.delete(ANN, made.id)
  })
  const replica = (
    publicUrl: string | null = 'http://127.0.0.1:1',
    over = store,
    allowPrivate = true,
  ): ConnectorLogins =>
    createConnectorLogins({
      store: over,
      vault,
      oauth,
      allowPrivate,
      publicUrl: () => publicUrl,
      isPublic: async (url) => url.startsWith('https:'),
      now,
      sleep: () => new Promise((resolve) => setTimeout(resolve, 5)),
    })
  const read = async (): Promise<Connector> => {
    const row = await store.connectors.get(ANN, made.id)
    if (!row) throw new Error('the connector is gone')
    return row
  }
  async function logIn(logins = replica()): Promise<Connector> {
    const { authorization_url } = await logins.begin(ANN, await read())
    return logins.finish(Object.fromEntries((await visit(authorization_url)).searchParams))
  }
  /** Asks for the token as a connection does: of the connector as it is now */
  async function tokenNow(logins = replica()): Promise<string | undefined> {
    return logins.authFor(await read()).token()
  }
  return { guarded, replica, read, logIn, tokenNow, time, made }
}
