/** Re-encryption over a table of many pages that is written meanwhile. */
import t from 'tap'
import { rotateEncryption, rotateKeys } from '../../src/credentials/key-rotation.ts'
import { createVault, secretContext } from '../../src/credentials/vault.ts'

const key = (id: string, fill: number) => ({ id, key: new Uint8Array(32).fill(fill) })
const former = createVault([key('old', 1)])
const vault = createVault([key('new', 2), key('old', 1)])

t.test('every page is sealed anew, and so is a row that is written behind a pass', async (t) => {
  const rows = new Map<string, Uint8Array>()
  const write = (id: string) => rows.set(id, former.seal('secret', secretContext('ann', id)))
  let confirmed = 0
  for (const id of ['b', 'c', 'd']) write(id)
  const store = {
    sealed: {
      async secrets(after: string) {
        const id = [...rows.keys()].sort().find((one) => one > after)
        return id ? [{ table: 'credential', id, owner: 'ann', version: 1, secret: rows.get(id) }] : []
      },
      async putSecret({ id }: { id: string }, secret: Uint8Array) {
        rows.set(id, secret)
        // A replica that still seals under the former key writes where this pass has been.
        if (id === 'd') write('a')
        return true
      },
      arguments: async () => [],
      documents: async () => [],
    },
    settings: { set: async () => void confirmed++ },
  } as unknown as Parameters<typeof rotateKeys>[0]
  t.same(await rotateKeys(store, vault), { resealed: 4, left: 0, unopened: [] })
  t.equal(confirmed, 1, 'no pass follows the one that found nothing')
  for (const [id, secret] of rows) t.equal(vault.keyId(secret), 'new', id)
})

t.test('a secret that no key opens is named and stays, and the others are sealed anew', async (t) => {
  const lost = createVault([key('lost', 3)])
  const part = (by: typeof vault) => ({
    type: 'sealed',
    sealed: Buffer.from(by.seal('text', 'ses_1')).toString('base64'),
  })
  const rows = new Map([
    ['a', lost.seal('secret', secretContext('ann', 'a'))],
    ['b', former.seal('secret', secretContext('ann', 'b'))],
  ])
  let parts = [part(lost), part(former)]
  const store = {
    sealed: {
      secrets: async (after: string) =>
        after ? [] : [...rows].map(([id, secret]) => ({ table: 'credential', id, owner: 'ann', secret })),
      async putSecret({ id }: { id: string }, secret: Uint8Array) {
        rows.set(id, secret)
        return true
      },
      arguments: async () => [],
      documents: async (place: string, after: string) =>
        place === 'turn.input' && !after
          ? [{ id: 'turn_1', session_id: 'ses_1', text: JSON.stringify(parts) }]
          : [],
      async putDocument(_place: string, _id: string, _before: string, text: string) {
        parts = JSON.parse(text)
        return true
      },
    },
    settings: { set: async () => {} },
  } as unknown as Parameters<typeof rotateKeys>[0]
  const why = 'A stored secret is sealed under the encryption key lost, which is not configured.'
  t.same(await rotateKeys(store, vault), {
    resealed: 2,
    left: 0,
    unopened: [`credential a of ann: ${why}`, `turn.input turn_1 of ses_1: ${why}`],
  })
  const keyOf = (sealed: string) => vault.keyId(Buffer.from(sealed, 'base64'))
  t.same([...rows.values()].map(vault.keyId), ['lost', 'new'])
  t.same(
    parts.map(({ sealed }) => keyOf(sealed)),
    ['lost', 'new'],
  )
})

t.test('a turn’s edits are sealed anew, whether or not they bring a message', async (t) => {
  const sealed = Buffer.from(former.seal('text', 'ses_1')).toString('base64')
  const edits = (part: string) => [
    { op: 'delete_at', index: 0 },
    { op: 'replace_at', index: 1, message: { role: 'user', parts: [{ type: 'sealed', sealed: part }] } },
  ]
  let text = JSON.stringify(edits(sealed))
  const store = {
    sealed: {
      secrets: async () => [],
      arguments: async () => [],
      documents: async (place: string, after: string) =>
        place === 'turn.context' && !after ? [{ id: 'turn_1', session_id: 'ses_1', text }] : [],
      async putDocument(_place: string, _id: string, _before: string, next: string) {
        text = next
        return true
      },
    },
    settings: { set: async () => {} },
  } as unknown as Parameters<typeof rotateKeys>[0]
  t.match(await rotateKeys(store, vault), { resealed: 1, left: 0 })
  const anew = JSON.parse(text)[1].message.parts[0].sealed
  t.same(JSON.parse(text), edits(anew))
  t.equal(vault.open(Buffer.from(anew, 'base64'), 'ses_1'), 'text')
})

t.test(
  'the new key is confirmed once nothing is left, even after the last pass, and each rotation is on record',
  async (t) => {
    const secret = former.seal('secret', secretContext('ann', 'a'))
    const did: unknown[] = []
    const rotation = (passes: number, isWritten: boolean) => {
      const store = {
        sealed: {
          secrets: async (after: string) =>
            after || passes-- <= 0
              ? []
              : [{ table: 'credential', id: 'a', owner: 'ann', version: 1, secret }],
          putSecret: async () => isWritten,
          arguments: async () => [],
          documents: async () => [],
        },
        settings: { set: async (name: string) => void did.push(name) },
        audit: { write: async (entry: unknown) => void did.push(entry) },
      } as unknown as Parameters<typeof rotateEncryption>[0]
      return rotateEncryption(store, vault, 'admin')
    }
    const entry = (resealed: number, left: number) => ({
      owner: 'admin',
      act: 'encryption.rotate',
      subject: 'new',
      details: { resealed, left, unopened: 0 },
    })
    t.match(await rotation(6, true), { left: 1, key: 'new', others: ['old'] })
    t.same(did.splice(0), [entry(5, 1)], 'a former key is still needed: the last pass only counts')
    t.match(await rotation(5, false), { left: 0 })
    t.same(did, ['encryption_check', entry(0, 0)])
  },
)
