import fs, { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { join } from 'node:path'
import { mock } from 'node:test'
import fc from 'fast-check'
import t from 'tap'
import type { Part } from '../../src/chat/message.ts'
import { sealParts } from '../../src/credentials/sealed-parts.ts'
import {
  confirmKeys,
  createVault,
  hintOf,
  loadKeyFile,
  openVault,
  secretContext,
  verifyKeys,
} from '../../src/credentials/vault.ts'
import { BatonError } from '../../src/errors.ts'
import type { Store } from '../../src/store/store.ts'
import { ANY_CHARACTER } from '../characters.ts'
import { scratch } from '../scratch.ts'

const key = (id: string, byte: number) => ({ id, key: new Uint8Array(32).fill(byte) })
const OLD = key('old', 1)
const NEW = key('new', 2)
const SECRET = 'sk-very-secret'
const CONTEXT = secretContext('ann', 'cred_1')

const fault = (work: () => unknown): string => {
  try {
    work()
  } catch (thrown) {
    if (thrown instanceof BatonError) return `${thrown.code}: ${thrown.message}`
    throw thrown
  }
  return 'nothing was thrown'
}
const rejected = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'nothing was thrown',
    (thrown: unknown) =>
      thrown instanceof BatonError ? `${thrown.code}: ${thrown.message}` : String(thrown),
  )

t.test('a part that is stored in two places is searched for secrets once', async (t) => {
  const asked: string[] = []
  const codec = sealParts(createVault([NEW]), (json) => asked.push(json) > 0)
  const part = { type: 'text' as const, text: SECRET }
  const stored = [codec.seal([part], 'ses_1'), codec.seal([part], 'ses_1')]
  t.strictSame(asked, [JSON.stringify(part)])
  for (const one of stored) t.strictSame(codec.open(one, 'ses_1'), [part])
})

t.test("a part's media are not searched for secrets, and are sealed with it", async (t) => {
  const asked: string[] = []
  const codec = sealParts(createVault([NEW]), (json) => asked.push(json) > 0)
  const image = { type: 'image' as const, media_type: 'image/png', data: 'QUtJQQ==', name: SECRET }
  const told = { call_id: 'call_1', name: 'docs.look', is_error: false, outcome: 'ok' as const }
  const result = { type: 'tool_result' as const, ...told, content: [image] }
  const parts: Part[] = [image, result]
  t.strictSame(codec.open(codec.seal(parts, 'ses_1'), 'ses_1'), parts)
  t.equal(asked.length, 2)
  for (const json of asked) t.match(json, SECRET)
  t.notMatch(asked.join(), image.data)
})

t.test('any text that is sealed for a context opens in that context', async () => {
  const vault = createVault([NEW, OLD])
  fc.assert(
    fc.property(fc.string({ unit: ANY_CHARACTER }), fc.string(), (plain, context) => {
      return vault.open(vault.seal(plain, context), context) === plain
    }),
  )
})

t.test('a secret looks different each time it is sealed, and does not show in what is sealed', async (t) => {
  const vault = createVault([NEW])
  const [one, two] = [vault.seal(SECRET, CONTEXT), vault.seal(SECRET, CONTEXT)]
  t.not(Buffer.from(one).toString('hex'), Buffer.from(two).toString('hex'))
  t.notOk(Buffer.from(one).includes(SECRET))
})

t.test('the first key seals, and each key opens what it sealed', async (t) => {
  const before = createVault([OLD]).seal(SECRET, CONTEXT)
  const vault = createVault([NEW, OLD])
  t.equal(vault.open(before, CONTEXT), SECRET)
  const after = vault.seal(SECRET, CONTEXT)
  t.strictSame([vault.current, vault.keyId(before), vault.keyId(after)], ['new', 'old', 'new'])
  t.match(
    fault(() => createVault([NEW]).open(before, CONTEXT)),
    /^internal: .*key old, which is not configured/,
  )
})

t.test(
  'a secret does not open in another place, with another key or a changed byte, and no error shows it',
  async (t) => {
    const vault = createVault([OLD])
    const sealed = vault.seal(SECRET, CONTEXT)
    const wrong = createVault([{ ...OLD, key: NEW.key }])
    const words = [
      fault(() => vault.open(sealed, secretContext('ann', 'cred_2'))),
      fault(() => vault.open(sealed, secretContext('bob', 'cred_1'))),
      fault(() => wrong.open(sealed, CONTEXT)),
    ]
    for (let i = 0; i < sealed.length; i++) {
      const changed = Uint8Array.from(sealed)
      changed[i] = (changed[i] ?? 0) ^ 1
      words.push(fault(() => vault.open(changed, CONTEXT)))
    }
    for (let length = 0; length < sealed.length; length++) {
      words.push(fault(() => vault.open(sealed.subarray(0, length), CONTEXT)))
    }
    t.ok(words.every((one) => one.startsWith('internal: A stored secret ')))
    t.notOk(words.some((one) => one.includes(SECRET)))
  },
)

t.test(
  'what was sealed by an earlier version opens, and what a later one may seal is told as such',
  async (t) => {
    const sealed = Buffer.from('AQNvbGTGya+bfN6WRC0gt1v9mTTaGkxw+ehQr5EBGyomovTA8hqANue5fAsiH7k=', 'base64')
    t.equal(createVault([OLD]).open(sealed, CONTEXT), SECRET)
    const check = 'AQNvbGQshPwCXRxO2zdEqnObwfx0ZVxJj8qme+ZLNyWFyhQuNfY='
    const init = async (name: string) => (name === 'encryption_check' ? check : '')
    await verifyKeys({ init, set: async () => {} }, createVault([OLD]))
    sealed[0] = 2
    t.match(
      fault(() => createVault([OLD]).open(sealed, CONTEXT)),
      /a form that this version of Baton does not know/,
    )
  },
)

t.test('of a secret four characters are shown, if there are more', async (t) => {
  t.strictSame(['sk-abcd', 'abcde', 'abcd', ''].map(hintOf), ['abcd', 'bcde', '****', '****'])
})

t.test('the keys of the settings are used if there are any, else those of the key file', async (t) => {
  const dataDir = scratch(t)
  const open = (encryptionKeys: (typeof OLD)[] | null) => openVault({ encryptionKeys, dataDir })
  t.match(open([NEW, OLD]), { current: 'new', others: ['old'] })
  t.strictSame(readdirSync(dataDir), [])
  const sealed = open(null).seal(SECRET, CONTEXT)
  t.equal(open(null).open(sealed, CONTEXT), SECRET)
})

t.test('the key file', async (t) => {
  const dir = scratch(t)

  await t.test('is made once, and only its owner can read it', async (t) => {
    const data = join(dir, 'made')
    const keys = loadKeyFile(data)
    t.strictSame(loadKeyFile(data), keys)
    t.strictSame(readdirSync(data), ['encryption.key'])
    t.equal(statSync(join(data, 'encryption.key')).mode & 0o777, 0o600)
    t.match(readFileSync(join(data, 'encryption.key'), 'utf8'), /^k[0-9a-f]{8}:[A-Za-z0-9+/]{43}=\n$/)
  })

  await t.test('is taken as it is if another process makes it meanwhile, or has made it', async (t) => {
    const data = join(dir, 'shared')
    const others = `k2:${Buffer.alloc(32, 2).toString('base64')}\n`
    const { linkSync: link } = fs
    const linkSync = mock.method(fs, 'linkSync', (draft: string, path: string) => {
      writeFileSync(path, others)
      link(draft, path)
    })
    syncBuiltinESMExports()
    t.teardown(() => {
      linkSync.mock.restore()
      syncBuiltinESMExports()
    })
    for (const _ of ['meanwhile', 'before']) t.strictSame(loadKeyFile(data), [key('k2', 2)])
    t.equal(linkSync.mock.callCount(), 1, 'one that is there needs no file system with links')
    t.strictSame(readdirSync(data), ['encryption.key'])
  })

  await t.test('is not replaced when it is damaged', async (t) => {
    const path = join(dir, 'encryption.key')
    const base64 = Buffer.alloc(32).toString('base64')
    for (const text of ['k1:c2hvcnQ=\n', base64, `:${base64}`, `a key:${base64}`, '']) {
      writeFileSync(path, text)
      t.match(
        fault(() => loadKeyFile(dir)),
        /^internal: The key file .*encryption\.key is damaged/,
        text,
      )
      t.equal(readFileSync(path, 'utf8'), text)
    }
  })

  await t.test('is named where it cannot be read', async (t) => {
    const data = join(dir, 'mounted')
    // Docker makes such a folder where the file that is to be mounted is not there.
    mkdirSync(join(data, 'encryption.key'), { recursive: true })
    t.throws(() => loadKeyFile(data), {
      name: 'ConfigError',
      message: /^BATON_DATA_DIR: .* in .*encryption\.key \(EISDIR.*Name a folder/,
    })
  })
})

t.test('keys that do not fit the database are refused before anything is sealed under them', async (t) => {
  const values = new Map<string, string>()
  const settings: Store['settings'] = {
    set: async (name, value) => void values.set(name, value),
    init: async (name, value) => {
      if (!values.has(name)) values.set(name, value)
      return values.get(name) ?? value
    },
  }
  await verifyKeys(settings, createVault([OLD]))
  await verifyKeys(settings, createVault([OLD]))
  await verifyKeys(settings, createVault([NEW, OLD]))
  t.match(
    await rejected(verifyKeys(settings, createVault([NEW]))),
    /^internal: The encryption keys do not fit this database.*key old.*BATON_ENCRYPTION_KEYS.*docs\/operations\.md/,
  )
  t.match(
    await rejected(verifyKeys(settings, createVault([{ ...NEW, id: 'old' }]))),
    /^internal: The encryption keys do not fit/,
  )
  await confirmKeys(settings, createVault([NEW, OLD]))
  await verifyKeys(settings, createVault([NEW]))
  t.match(
    await rejected(verifyKeys(settings, createVault([OLD]))),
    /key new/,
    'after the change the new key is needed',
  )
})
