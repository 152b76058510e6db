/** Run by renewals-shared.ts as a process of its own: asks for a login's token, and is killed in the middle. */
import pino from 'pino'
import { createVault } from '../../src/credentials/vault.ts'
import { openStore } from '../../src/store/open.ts'
import { assemble } from './world.ts'

const [databaseUrl = '', key = '', id = '', provider = '', env = ''] = process.argv.slice(2)
const store = await openStore({ databaseUrl, dataDir: '', poolSize: 2 })
const vault = createVault([{ id: 'k1', key: new Uint8Array(Buffer.from(key, 'base64')) }])
const replica = assemble(JSON.parse(env), { store, vault, log: pino({ level: 'silent' }), claimSeconds: 2 })
const choice = await replica.choice.resolve({ owner: 'me', provider, credential_id: id }, provider)
await choice.secret()
