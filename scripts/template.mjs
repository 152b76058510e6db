// Leaves a fresh embedded database with Baton's schema in dist/, so that a first start need not make one (seconds,
// and several hundred MB). Made again only when PGlite's version, the migrations or this script have changed.
import { createHash } from 'node:crypto'
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { PGlite } from '@electric-sql/pglite'
import { inTransaction } from '../dist/src/store/db.js'
import { migrate, readMigrations } from '../dist/src/store/migrate.js'

const target = 'dist/pglite-template.tar.gz'
const contentsFile = 'dist/pglite-template.json'
const manifest = new URL('../package.json', import.meta.resolve('@electric-sql/pglite'))
const { version } = JSON.parse(readFileSync(manifest, 'utf8'))
const migrations = readMigrations()
const contents = JSON.stringify({
  script: createHash('sha256')
    .update(readFileSync(new URL(import.meta.url)))
    .digest('hex'),
  pglite: version,
  migrations: migrations.map(({ name, sha256 }) => ({ name, sha256 })),
})

const isCurrent =
  existsSync(target) && existsSync(contentsFile) && readFileSync(contentsFile, 'utf8') === contents
if (!isCurrent) {
  const pglite = await PGlite.create()
  const queries = {
    query: async (text, params) => (await pglite.query(text, params)).rows,
    script: async (text) => void (await pglite.exec(text)),
  }
  const db = { ...queries, transaction: (work) => inTransaction(queries, work) }
  await migrate(db, migrations).catch(({ message }) => {
    // Not thrown: Node would show the place, a line of PGlite that is 16 kB long.
    console.error(message)
    process.exit(1)
  })
  // No database is ever made from these: they are two thirds of the files that a first start would have to write.
  for (const name of ['template0', 'template1']) {
    await pglite.exec(`alter database ${name} is_template false`)
    await pglite.exec(`drop database ${name}`)
  }
  await pglite.exec('vacuum analyze')
  // Plans are made while the tables are empty, and kept: for tables known to be empty any index would do. Of a table
  // that it knows nothing about, the planner expects some pages, and so reads the table by the index that fits.
  await pglite.exec(`
    select pg_clear_relation_stats('public', relname) from pg_class
     where relnamespace = 'public'::regnamespace and relkind = 'r'`)
  // Two thirds of the archive would be the log of how all this was written.
  for (const sql of ['set wal_recycle = off', 'select pg_switch_wal()', 'checkpoint']) await pglite.exec(sql)
  const dump = await pglite.dumpDataDir('gzip')
  await pglite.close()
  writeFileSync(`${target}.part`, Buffer.from(await dump.arrayBuffer()))
  renameSync(`${target}.part`, target)
  writeFileSync(contentsFile, contents)
}
