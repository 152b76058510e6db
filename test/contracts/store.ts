/**
 * What every Store must do, on every database. Every test makes rows of its own, under owners of its own, so that the
 * tests can share one database.
 */
import type { Test } from 'tap'
import type { Store } from '../../src/store/store.ts'
import { commitContract } from './store-commits.ts'
import { connectorContract } from './store-connectors.ts'
import { credentialContract } from './store-credentials.ts'
import { keyContract } from './store-keys.ts'
import { ledgerContract } from './store-ledger.ts'
import { loginContract } from './store-logins.ts'
import { messageContract } from './store-messages.ts'
import { registryContract } from './store-registry.ts'
import { sessionContract } from './store-sessions.ts'
import { turnContract } from './store-turns.ts'

export async function storeContract(t: Test, store: Store): Promise<void> {
  await t.test('sessions', (t) => sessionContract(t, store))
  await t.test('messages', (t) => messageContract(t, store))
  await t.test('turns', (t) => turnContract(t, store))
  await t.test('commits of turns', (t) => commitContract(t, store))
  await t.test('ledger', (t) => ledgerContract(t, store))
  await t.test('connectors', (t) => connectorContract(t, store))
  await t.test('the registry of a session’s tools', (t) => registryContract(t, store))
  await t.test('credentials', (t) => credentialContract(t, store))
  await t.test('keys, audit, settings', (t) => keyContract(t, store))
  await t.test('logins that are under way', (t) => loginContract(t, store))
}
