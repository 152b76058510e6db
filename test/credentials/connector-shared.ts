/** What the tests of logins at MCP servers share: a store costs more than most of them. */
import t from 'tap'
import { connectorWorld } from './connector-world.ts'

export const { store, vault, bench } = await connectorWorld(t)
