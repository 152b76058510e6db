/** Run by embedded.test.ts as a process of its own: writes to an embedded store until it is killed. */
import { newId } from '../../src/chat/ids.ts'
import { openStore } from '../../src/store/open.ts'
import { message, newSession } from '../contracts/store-rows.ts'

const store = await openStore({ databaseUrl: null, dataDir: process.argv[2] ?? '', poolSize: 1 })
const scope = { owner: 'writer', admin: false }
const { id } = await newSession(store, scope)
process.stdout.write(`${id}\n`)
for (;;) {
  const one = message('x'.repeat(2000), { id: newId('msg') })
  await store.messages.append(scope, id, [one])
  // Only now does anybody know of the message.
  process.stdout.write(`${one.id}\n`)
}
