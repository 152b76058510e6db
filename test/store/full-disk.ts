/** Run by full-disk.test.ts: an embedded store on a small file system, in the folder given, while its room runs out. */
import { rmSync, statfsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { value } from '../../src/store/db.ts'
import { openEmbedded } from '../../src/store/embedded.ts'
import { readMigrations } from '../../src/store/migrate.ts'
import { readTemplate } from '../../src/store/template.ts'

const [folder = ''] = process.argv.slice(2)
const junk = join(folder, 'junk')
const open = (name: string) => openEmbedded(join(folder, name), () => readTemplate(readMigrations()))
const db = await open('data')

function leave(bytes: number): void {
  rmSync(junk, { force: true })
  const { bavail, bsize } = statfsSync(folder)
  writeFileSync(junk, Buffer.alloc(bavail * bsize - bytes))
}

/** Waits for a vacuum of the table, so many chances long (other tables may come first), and counts the vacuums. */
async function vacuums(chances: number): Promise<number> {
  for (let i = 0; i < chances; i++) {
    for (let n = 0; n < 100; n++) await db.query('select 1')
    await sleep(400)
    const count = await value<number>(db, `select pg_stat_get_vacuum_count('setting'::regclass)::int`)
    if (count) return count
  }
  return 0
}

await db.query(`insert into setting select 'name ' || n, repeat('x', 1000) from generate_series(1, 40000) n`)
leave(90 << 20)
console.log(`tight: ${await vacuums(10)} vacuums`)
rmSync(junk)
console.log(`roomy: ${await vacuums(50)} vacuums`)

// The first piece of a new database's log is mostly a hole: its room may be gone before it is written.
const young = await open('young')
leave(1 << 20)
await young.query(`select pg_logical_emit_message(true, '', repeat('x', 2 << 20))`).catch(() => {})
console.log(`young: ${(await young.lost)?.message}`)

leave(8 << 20)
void db.lost?.then(({ message }) => {
  console.log(`lost: ${message}`)
  process.exit()
})
// Each switch of the log asks for a new piece of it, of 16 MB.
for (let i = 0; i < 10; i++) {
  await db.query(`update setting set value = $1 where name = 'name 1'`, [String(i)]).catch(() => {})
  await db.query('select pg_switch_wal()').catch(() => {})
}
