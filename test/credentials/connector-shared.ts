/** What the tests of logins at MCP servers share: a store costs more than most of them. */
import t from 'tap'
import type { Store } from '../../src/store/store.ts'
import { connectorWorld } from './connector-world.ts'

export const { store, vault, bench } = await connectorWorld(t)

/** The store with some verbs of its connectors replaced. */
export const storeWith = (verbs: Partial<Store['connectors']>): Store => ({
  ...store,
  connectors: { ...store.connectors, ...verbs },
})
