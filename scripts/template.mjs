// Puts a fresh embedded database with Baton's schema into dist/, so that a first start need not create one (seconds,
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
    // Not thrown: Node would print the source line, 16 kB of PGlite.
    console.error(message)
    process.exit(1)
  })
  // No database is ever created from these, and they are two thirds of the files that a first start would write.
  for (const name of ['template0', 'template1']) {
    await pglite.exec(`alter database ${name} is_template false`)
    await pglite.exec(`drop database ${name}`)
  }
  await pglite.exec('vacuum analyze')
  // Plans are made while the tables are empty, and kept: for tables known to be empty any index would do. For a table
  // without statistics the planner assumes some pages, and so uses the index that fits.
  await pglite.exec(`
    select pg_clear_relation_stats('public', relname) from pg_class
     where relnamespace = 'public'::regnamespace and relkind = 'r'`)
  // The write-ahead log of all this would be two thirds of the archive.
  for (const sql of ['set wal_recycle = off', 'select pg_switch_wal()', 'checkpoint']) await pglite.exec(sql)
  const dump = await pglite.dumpDataDir('gzip')
  await pglite.close()
  writeFileSync(`${target}.part`, Buffer.from(await dump.arrayBuffer()))
  renameSync(`${target}.part`, target)
}
try {
  // Each time: by this file's age `npm start` sees whether dist/ was built since the last `npm ci`.
  writeFileSync(contentsFile, contents)
} catch (failure) {
  // A copy may have lost its files' times, and be another user's: what it holds is current.
  if (!isCurrent) throw failure
}
