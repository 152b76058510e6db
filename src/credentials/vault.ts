/**
 * Secrets at rest: AES-256-GCM under named keys. The first key seals, all open, so that keys can be changed one
 * re-encryption at a time. What is sealed is bound to its place (`context`): a row's secret copied to another row does
 * not open. No error reveals anything about a secret or a key.
 */
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto'
import {
  closeSync,
  existsSync,
  fsyncSync,
  linkSync,
  openSync,
  readFileSync,
  rmSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import type { Config } from '../config/config.ts'
import { makeDataDir, unusable } from '../config/data-dir.ts'
import { KEY_ID } from '../config/readers.ts'
import { BatonError } from '../errors.ts'
import type { Store } from '../store/store.ts'

/** A key by its name, which is stored with what it seals. */
interface VaultKey {
  /** 1 to 64 of A–Z a–z 0–9 . _ - */
  id: string
  /** 32 bytes */
  key: Uint8Array
}

export interface Vault {
  /** The id of the key that seals. */
  readonly current: string
  /** The ids of the other keys, which only open. */
  readonly others: readonly string[]
  /** `context` says whose secret it is and where it is kept: see secretContext. */
  seal(plain: string, context: string): Uint8Array
  /** Throws BatonError `internal` for an unknown key, another context, or damaged bytes. */
  open(sealed: Uint8Array, context: string): string
  /** The id of the key that the bytes were sealed under. */
  keyId(sealed: Uint8Array): string
}

/** An owner's secret in the row of this id. */
export const secretContext = (owner: string, id: string): string => `${owner}/${id}`

/** A row's secret, for the row alone. */
export const sealSecret = (
  vault: Pick<Vault, 'seal'>,
  { owner, id }: { owner: string; id: string },
  secret: object,
): Uint8Array => vault.seal(JSON.stringify(secret), secretContext(owner, id))

/** What `sealSecret` was given: the seal proves that nobody else wrote it. Throws as `Vault.open`. */
export const openSecret = <T>(
  vault: Pick<Vault, 'open'>,
  { owner, id, secret }: { owner: string; id: string; secret: Uint8Array },
): T => JSON.parse(vault.open(secret, secretContext(owner, id))) as T

/** What is shown of a secret, never all of it. */
export const hintOf = (secret: string): string => (secret.length > 4 ? secret.slice(-4) : '****')

// version · length of key id · key id · iv · tag · ciphertext. The part before the iv is authenticated too.
const VERSION = 1
const IV_BYTES = 12
const TAG_BYTES = 16

/** The keys were checked when they were read, from the settings or the key file. */
export function createVault(keys: readonly VaultKey[]): Vault {
  const byId = new Map(keys.map(({ id, key }) => [id, key]))
  const [first] = keys
  if (!first) throw fault('There is no encryption key.')
  return {
    current: first.id,
    others: keys.slice(1).map(({ id }) => id),
    keyId: (sealed) => readHeader(sealed).id,
    seal(plain, context) {
      const header = Buffer.from([VERSION, first.id.length, ...Buffer.from(first.id, 'latin1')])
      const iv = randomBytes(IV_BYTES)
      const cipher = createCipheriv('aes-256-gcm', first.key, iv)
      cipher.setAAD(Buffer.concat([header, Buffer.from(context, 'utf8')]))
      const body = Buffer.concat([cipher.update(plain, 'utf8'), cipher.final()])
      return new Uint8Array(Buffer.concat([header, iv, cipher.getAuthTag(), body]))
    },
    open(sealed, context) {
      const { id, header, rest } = readHeader(sealed)
      const key = byId.get(id)
      if (!key)
        throw fault(`A stored secret is sealed under the encryption key ${id}, which is not configured.`)
      const decipher = createDecipheriv('aes-256-gcm', key, rest.subarray(0, IV_BYTES), {
        authTagLength: TAG_BYTES,
      })
      decipher.setAAD(Buffer.concat([header, Buffer.from(context, 'utf8')]))
      decipher.setAuthTag(rest.subarray(IV_BYTES, IV_BYTES + TAG_BYTES))
      try {
        const body = rest.subarray(IV_BYTES + TAG_BYTES)
        return Buffer.concat([decipher.update(body), decipher.final()]).toString('utf8')
      } catch {
        // No cause: it would say nothing more, and it must not carry bytes of the secret.
        throw fault(
          `A stored secret does not open: the encryption key ${id} is another one than it was sealed under, or the stored bytes were changed.`,
        )
      }
    },
  }
}

function readHeader(sealed: Uint8Array): { id: string; header: Buffer; rest: Buffer } {
  const bytes = Buffer.from(sealed.buffer, sealed.byteOffset, sealed.byteLength)
  const end = 2 + (bytes[1] ?? 0)
  if (bytes[0] !== VERSION || bytes.length < end + IV_BYTES + TAG_BYTES) {
    throw fault('A stored secret has a form that this version of Baton does not know.')
  }
  return { id: bytes.toString('latin1', 2, end), header: bytes.subarray(0, end), rest: bytes.subarray(end) }
}

const fault = (message: string) => new BatonError('internal', message)

// ---------------------------------------------------------------- where its keys are

/** The vault of an installation. Throws as `loadKeyFile`. */
export const openVault = (config: Pick<Config, 'encryptionKeys' | 'dataDir'>): Vault =>
  createVault(config.encryptionKeys ?? loadKeyFile(config.dataDir))

const KEY_FILE = 'encryption.key'

/**
 * The key of an installation without BATON_ENCRYPTION_KEYS: `<id>:<base64>` in a file of the data folder, the form of
 * that variable, made on the first start with mode 0600. Two processes that make it at once both read the same one.
 * Throws ConfigError if it can be neither read nor made, BatonError `internal` if it holds no key.
 */
export function loadKeyFile(dataDir: string): VaultKey[] {
  makeDataDir(dataDir)
  const path = join(dataDir, KEY_FILE)
  return [parseKey(readOrMake(path), path)]
}

function readOrMake(path: string): string {
  try {
    return existsSync(path) ? readFileSync(path, 'utf8') : made(path)
  } catch (failure) {
    throw unusable(path, failure)
  }
}

/** Written under a name of its own and then linked: a process that sees the file sees all of it. */
function made(path: string): string {
  const draft = `${path}.${randomBytes(6).toString('hex')}`
  const file = openSync(draft, 'wx', 0o600)
  try {
    writeSync(file, `k${randomBytes(4).toString('hex')}:${randomBytes(32).toString('base64')}\n`)
    fsyncSync(file)
    linkSync(draft, path)
  } catch (err) {
    if ((err as NodeJS.ErrnoException).code !== 'EEXIST') throw err
  } finally {
    closeSync(file)
    rmSync(draft, { force: true })
  }
  return readFileSync(path, 'utf8')
}

function parseKey(text: string, path: string): VaultKey {
  const [id = '', base64 = ''] = text.trim().split(':')
  const key = Buffer.from(base64, 'base64')
  if (!KEY_ID.test(id) || key.length !== 32) {
    throw fault(
      `The key file ${path} is damaged. Restore it from a backup: without it the stored secrets cannot be read.`,
    )
  }
  return { id, key: new Uint8Array(key) }
}

// ---------------------------------------------------------------- the check at start-up

const CHECK = 'encryption_check'
const CHECK_TEXT = 'baton'

/**
 * Proves that the keys are those that the stored secrets were sealed under, before anything is sealed under
 * others. Throws BatonError `internal` with the remedy.
 */
export async function verifyKeys(settings: Store['settings'], vault: Vault): Promise<void> {
  const stored = await settings.init(CHECK, checkValue(vault))
  try {
    vault.open(Buffer.from(stored, 'base64'), CHECK)
  } catch (err) {
    if (!(err instanceof BatonError)) throw err
    throw new BatonError(
      'internal',
      `The encryption keys do not fit this database. ${err.message} Put the former key back (BATON_ENCRYPTION_KEYS, or the file ${KEY_FILE} in the data folder); a new key goes before it, and the old one stays until everything is re-encrypted. If it is lost for good, docs/operations.md (Backup and restore) says what is left to do.`,
      { cause: err },
    )
  }
}

/** Called after every secret was sealed anew under the current key: the former keys are no longer needed. */
export const confirmKeys = (settings: Store['settings'], vault: Vault): Promise<void> =>
  settings.set(CHECK, checkValue(vault))

const checkValue = (vault: Vault): string => Buffer.from(vault.seal(CHECK_TEXT, CHECK)).toString('base64')
