/**
 * Re-encryption: everything at rest is opened and sealed anew under the first key, while the gateway serves.
 * Nothing is written over what changed meanwhile: that is looked at again.
 */
import type { SealedPlace, Store } from '../store/store.ts'
import { confirmKeys, secretContext, type Vault } from './vault.ts'

/** How far a re-encryption came. */
export interface Rotation {
  /** Secrets and documents that were sealed anew */
  resealed: number
  /** Those that kept changing; not 0: run it again before a former key is taken away */
  left: number
}
/** Rotation as an act of administration, on record. */
export async function rotateEncryption(
  store: RotationStore & Pick<Store, 'audit'>,
  vault: Vault,
  by: string,
): Promise<Rotation> {
  const rotation = await rotateKeys(store, vault)
  const details = { ...rotation }
  await store.audit.write({ owner: by, act: 'encryption.rotate', subject: vault.current, details })
  return rotation
}

type RotationStore = Pick<Store, 'sealed' | 'settings'>

/** Rows that are looked at together; few hold anything sealed. */
const PAGE = 500
/** What was written while a pass went by is found by the next. */
const MOST_PASSES = 5

/** A part as it is stored: one of the conversation's, or a sealed one. */
interface StoredPart {
  type: string
  sealed?: string
}
/** Where a document has its parts. The store wrote it, so its shape holds. */
const PLACES: Readonly<Record<SealedPlace, (document: unknown) => StoredPart[]>> = {
  'message.body': (body) => (body as { parts: StoredPart[] }).parts,
  'turn.input': (parts) => parts as StoredPart[],
  'turn.context': (edits) =>
    (edits as { message?: { parts: StoredPart[] } }[]).flatMap(({ message }) => message?.parts ?? []),
  'turn.announce': (parts) => parts as StoredPart[],
  'execution.result': (parts) => parts as StoredPart[],
}
const ALL_PLACES = Object.keys(PLACES) as SealedPlace[]

/**
 * Every replica must have the new key first in BATON_ENCRYPTION_KEYS by now: a replica without it still
 * seals under the old key. Logins on their way stay as they are: they end within minutes. Throws BatonError
 * `internal` for what no key opens.
 */
export async function rotateKeys(store: RotationStore, vault: Vault): Promise<Rotation> {
  let resealed = 0
  for (let pass = 0; pass < MOST_PASSES; pass++) {
    const tally = { done: 0, moved: 0 }
    // One after the other; false: it was changed meanwhile.
    for await (const write of outdated(store, vault)) (await write()) ? tally.done++ : tally.moved++
    resealed += tally.done
    if (tally.moved > 0) continue
    if (tally.done > 0 && pass < MOST_PASSES - 1) continue
    await confirmKeys(store.settings, vault)
    return { resealed, left: 0 }
  }
  const left = await count(store, vault)
  if (left === 0) await confirmKeys(store.settings, vault)
  return { resealed, left }
}

async function count(store: RotationStore, vault: Vault): Promise<number> {
  let found = 0
  for await (const _ of outdated(store, vault)) found++
  return found
}

type Write = () => Promise<boolean>

/** Everything under a former key, each with the way to write it anew. */
async function* outdated({ sealed }: RotationStore, vault: Vault): AsyncGenerator<Write> {
  const isOld = (bytes: Uint8Array) => vault.keyId(bytes) !== vault.current
  const anew = (bytes: Uint8Array, context: string) => vault.seal(vault.open(bytes, context), context)

  for await (const row of pages((after) => sealed.secrets(after, PAGE))) {
    const { id, owner, secret } = row
    if (isOld(secret)) yield () => sealed.putSecret(row, anew(secret, secretContext(owner, id)))
  }
  for await (const { id, sealed: bytes } of pages((after) => sealed.arguments(after, PAGE))) {
    if (bytes && isOld(bytes)) yield () => sealed.putArguments(id, bytes, anew(bytes, id))
  }
  for (const place of ALL_PLACES) {
    for await (const { id, session_id, text } of pages((after) => sealed.documents(place, after, PAGE))) {
      if (text === null) continue
      const next = resealedText(place, text, vault, (bytes) => anew(bytes, session_id))
      if (next !== null) yield () => sealed.putDocument(place, id, text, next)
    }
  }
}

/** The document with each sealed part (sealed-parts.ts) under the current key; null: they are already. */
function resealedText(
  place: SealedPlace,
  text: string,
  vault: Vault,
  anew: (bytes: Uint8Array) => Uint8Array,
): string | null {
  const document: unknown = JSON.parse(text)
  let isChanged = false
  for (const part of PLACES[place](document)) {
    // What a model said may look alike, but stands deeper.
    if (part.type !== 'sealed' || typeof part.sealed !== 'string') continue
    const bytes = new Uint8Array(Buffer.from(part.sealed, 'base64'))
    if (vault.keyId(bytes) === vault.current) continue
    part.sealed = Buffer.from(anew(bytes)).toString('base64')
    isChanged = true
  }
  return isChanged ? JSON.stringify(document) : null
}

async function* pages<Row extends { id: string }>(
  page: (after: string) => Promise<Row[]>,
): AsyncGenerator<Row> {
  let after = ''
  for (;;) {
    const rows = await page(after)
    yield* rows
    const last = rows.at(-1)
    if (!last) return
    after = last.id
  }
}
