/**
 * Logins whose tokens end when a test says so, and two replicas that use them. The tests of renewals share all of it: it
 * costs more than most of them.
 */
import t from 'tap'
import type { ChosenCredential } from '../../src/credentials/choose.ts'
import type { LoginSecret } from '../../src/oauth-vendor.ts'
import type { Credential, Store } from '../../src/store/store.ts'
import { createWorld, loggedIn, ME, type Replica, sealedOf } from './world.ts'

export type Provider = 'openai' | 'anthropic' | 'gemini'

export const world = await createWorld(t)
const { store, openai, anthropic, google } = world
export const emulators = { openai, anthropic, gemini: google }
export const one = world.replica()
export const two = world.replica()
export const read = async (id: string): Promise<Credential> => {
  const row = await store.credentials.get(ME, id)
  if (!row) throw new Error(`no credential ${id}`)
  return row
}

/** A login whose access token ends in so many seconds. */
export async function login(
  provider: Provider,
  seconds: number,
): Promise<{ id: string; secret: LoginSecret }> {
  const { id } = await loggedIn(one, provider)
  await ends(id, seconds)
  return { id, secret: await sealedOf(world, id) }
}
/** Stores the login anew, as if it had been given with this expiry. */
export async function ends(id: string, seconds: number): Promise<void> {
  const row = await read(id)
  await store.credentials.delete(ME, id)
  await store.credentials.create({ ...row, expires_at: at(seconds) })
}
/** The store with some verbs of its credentials replaced. */
export const storeWith = (verbs: Partial<Store['credentials']>): Store => ({
  ...store,
  credentials: { ...store.credentials, ...verbs },
})

export const at = (seconds: number): string => new Date(Date.now() + seconds * 1000).toISOString()
export const chosen = (replica: Replica, id: string, provider: Provider): Promise<ChosenCredential> =>
  replica.choice.resolve({ owner: ME.owner, provider, credential_id: id }, provider)
export const tokenOf = async (choice: ChosenCredential) => (await choice.secret()).access_token ?? ''
export const unauthorized = (choice: ChosenCredential) => choice.onUnauthorized?.() ?? Promise.resolve(false)
