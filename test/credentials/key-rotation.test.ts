/** Re-encryption over a table of many pages that is written meanwhile. */
import t from 'tap'
import { rotateKeys } from '../../src/credentials/key-rotation.ts'
import { createVault, secretContext } from '../../src/credentials/vault.ts'

const key = (id: string, fill: number) => ({ id, key: new Uint8Array(32).fill(fill) })
const former = createVault([key('old', 1)])
const vault = createVault([key('new', 2), key('old', 1)])

t.test('every page is sealed anew, and so is what was written while a pass went by', async (t) => {
  const rows = new Map<string, Uint8Array>()
  const write = (id: string) => rows.set(id, former.seal('secret', secretContext('ann', id)))
  for (const id of ['b', 'c', 'd']) write(id)
  const store = {
    sealed: {
      async secrets(after: string) {
        const id = [...rows.keys()].sort().find((one) => one > after)
        return id ? [{ table: 'credential', id, owner: 'ann', version: 1, secret: rows.get(id) }] : []
      },
      async putSecret({ id }: { id: string }, secret: Uint8Array) {
        rows.set(id, secret)
        // A replica that still seals under the former key, where this pass has been.
        if (id === 'd') write('a')
        return true
      },
      arguments: async () => [],
      documents: async () => [],
    },
    settings: { set: async () => {} },
  } as unknown as Parameters<typeof rotateKeys>[0]
  t.same(await rotateKeys(store, vault), { resealed: 4, left: 0 })
  for (const [id, secret] of rows) t.equal(vault.keyId(secret), 'new', id)
})
