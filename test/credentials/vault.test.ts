import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import fc from 'fast-check'
import t from 'tap'
import { sealParts } from '../../src/credentials/sealed-parts.ts'
import {
  confirmKeys,
  createVault,
  loadKeyFile,
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

t.test('the key file', async (t) => {
  const dir = scratch(t)

  await t.test('is made once, by the first that needs it, and only its owner can read it', async (t) => {
    const folders = Array.from({ length: 30 }, (_, i) => join(dir, `race-${i}`))
    const url = new URL('../../src/credentials/vault.js', import.meta.url).href
    // Whoever is behind finds keys that are made already, and so catches up with the other.
    const code = `import('${url}').then(({ loadKeyFile }) => {
      const ids = ${JSON.stringify(folders)}.map((folder) => loadKeyFile(folder)[0].id)
      require('node:worker_threads').parentPort.postMessage(ids)
    })`
    const makeKeys = () =>
      new Promise((resolve, reject) => {
        new Worker(code, { eval: true }).once('message', resolve).once('error', reject)
      })
    const [ids, others] = await Promise.all([makeKeys(), makeKeys()])
    t.strictSame(ids, others)
    const [data = ''] = folders
    t.strictSame(
      folders.map((folder) => loadKeyFile(folder)[0]?.id),
      ids,
    )
    t.strictSame(readdirSync(data), ['encryption.key'])
    t.equal(statSync(join(data, 'encryption.key')).mode & 0o777, 0o600)
    t.match(readFileSync(join(data, 'encryption.key'), 'utf8'), /^k[0-9a-f]{8}:[A-Za-z0-9+/]{43}=\n$/)
  })

  await t.test('is not replaced when it is damaged', async (t) => {
    const path = join(dir, 'encryption.key')
    writeFileSync(path, 'k1:c2hvcnQ=\n')
    t.match(
      fault(() => loadKeyFile(dir)),
      /^internal: The key file .*encryption\.key is damaged/,
    )
    t.equal(readFileSync(path, 'utf8'), 'k1:c2hvcnQ=\n')
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
