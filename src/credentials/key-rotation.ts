/**
 * Re-encryption: everything at rest is opened and sealed anew under the first key, while the gateway serves. A row that
 * changed meanwhile is not written over, but looked at again.
 */
import { BatonError } from '../errors.ts'
import type { SealedPlace, Store } from '../store/store.ts'
import { confirmKeys, secretContext, type Vault } from './vault.ts'

/** How far a re-encryption got. */
interface Rotation {
  /** Secrets and documents that were sealed anew */
  resealed: number
  /** Secrets that kept changing; if not 0, run it again before a former key is taken away */
  left: number
  /** Secrets that no configured key opens, each with the reason, the first hundred of them; they stay as they are */
  unopened: string[]
}
/** A rotation with the ids of the keys that it ran under: the one that seals, and the others. */
export interface KeyRotation extends Rotation {
  key: string
  others: readonly string[]
}
/** Rotation as an act of administration, on record in the audit trail. */
export async function rotateEncryption(
  store: RotationStore & Pick<Store, 'audit'>,
  vault: Vault,
  by: string,
): Promise<KeyRotation> {
  const rotation = await rotateKeys(store, vault)
  const details = { ...rotation, unopened: rotation.unopened.length }
  await store.audit.write({ owner: by, act: 'encryption.rotate', subject: vault.current, details })
  return { ...rotation, key: vault.current, others: vault.others }
}

type RotationStore = Pick<Store, 'sealed' | 'settings'>

/** Rows that are looked at together; few hold anything sealed. */
const PAGE = 500
/** What was written during a pass is found by the next; after so many, one more only counts what is left. */
const MOST_PASSES = 5
const MOST_NAMED = 100

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
 * Every replica must have the new key first in BATON_ENCRYPTION_KEYS by now: a replica without it still seals under the
 * old key. Pending logins stay as they are: they end within minutes.
 */
export async function rotateKeys(store: RotationStore, vault: Vault): Promise<Rotation> {
  let resealed = 0
  for (let pass = 0; ; pass++) {
    const unopened: string[] = []
    let left = 0
    for await (const write of outdated(store, vault, unopened)) {
      left++
      // One write after the other; false: the row was changed meanwhile.
      if (pass < MOST_PASSES && (await write())) resealed++
    }
    if (left === 0) await confirmKeys(store.settings, vault)
    if (left === 0 || pass === MOST_PASSES) return { resealed, left, unopened }
  }
}

type Write = () => Promise<boolean>

/** For everything under a former key, a function that seals it again; `unopened` gets what no key opens. */
async function* outdated({ sealed }: RotationStore, vault: Vault, unopened: string[]): AsyncGenerator<Write> {
  /** Null: it stays as it is. */
  function anew(what: string, bytes: Uint8Array, context: string): Uint8Array | null {
    try {
      return vault.keyId(bytes) === vault.current ? null : vault.seal(vault.open(bytes, context), context)
    } catch (failure) {
      if (!(failure instanceof BatonError)) throw failure
      if (unopened.length < MOST_NAMED) unopened.push(`${what}: ${failure.message}`)
      return null
    }
  }

  for await (const row of pages((after) => sealed.secrets(after, PAGE))) {
    const { table, id, owner, secret } = row
    const next = anew(`${table} ${id} of ${owner}`, secret, secretContext(owner, id))
    if (next) yield () => sealed.putSecret(row, next)
  }
  for await (const { id, sealed: bytes } of pages((after) => sealed.arguments(after, PAGE))) {
    const next = bytes && anew(`execution.arguments ${id}`, bytes, id)
    if (bytes && next) yield () => sealed.putArguments(id, bytes, next)
  }
  for (const place of ALL_PLACES) {
    for await (const { id, session_id, text } of pages((after) => sealed.documents(place, after, PAGE))) {
      if (text === null) continue
      const what = `${place} ${id} of ${session_id}`
      const next = resealedText(place, text, (bytes) => anew(what, bytes, session_id))
      if (next !== null) yield () => sealed.putDocument(place, id, text, next)
    }
  }
}

/** The document with the sealed parts (sealed-parts.ts) that `anew` gives; null: none. */
function resealedText(
  place: SealedPlace,
  text: string,
  anew: (bytes: Uint8Array) => Uint8Array | null,
): string | null {
  const document: unknown = JSON.parse(text)
  let isChanged = false
  for (const part of PLACES[place](document)) {
    // A model's words may look the same, but are nested deeper.
    if (part.type !== 'sealed' || typeof part.sealed !== 'string') continue
    const next = anew(new Uint8Array(Buffer.from(part.sealed, 'base64')))
    if (!next) continue
    part.sealed = Buffer.from(next).toString('base64')
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
