// Leaves a fresh embedded database in dist/, so that a first start need not make one (a few seconds and
// several hundred MB). Made again only when PGlite's version has changed. No migration is applied to it.
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { PGlite } from '@electric-sql/pglite'

const target = 'dist/pglite-template.tar.gz'
const versionFile = 'dist/pglite-template.version'
const manifest = new URL('../package.json', import.meta.resolve('@electric-sql/pglite'))
const { version } = JSON.parse(readFileSync(manifest, 'utf8'))

const isCurrent =
  existsSync(target) && existsSync(versionFile) && readFileSync(versionFile, 'utf8') === version
if (!isCurrent) {
  mkdirSync('dist', { recursive: true })
  const db = await PGlite.create()
  const dump = await db.dumpDataDir('gzip')
  await db.close()
  writeFileSync(`${target}.part`, Buffer.from(await dump.arrayBuffer()))
  renameSync(`${target}.part`, target)
  writeFileSync(versionFile, version)
}
