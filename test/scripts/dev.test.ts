/** `npm run dev`, with a compiler and a gateway of the test's own. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { scratch } from '../scratch.ts'

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../../..')

/** A compiler like TypeScript's: a process that starts another one, and passes no signal on. */
const COMPILER = `#!/bin/sh
grep -q edited src/server.ts || exit 0
echo compiles
sleep 60
echo ended
`
const GATEWAY = `
process.on('SIGTERM', () => { console.log('leaving'); process.exit() })
setTimeout(() => {}, 60_000)
console.log('serving')
`

t.test('npm run dev compiles what is edited, and ends what it has started', async (t) => {
  const folder = scratch(t)
  for (const file of ['package.json', 'tsconfig.json', 'scripts/dev.mjs']) {
    mkdirSync(dirname(join(folder, file)), { recursive: true })
    copyFileSync(join(root, file), join(folder, file))
  }
  const { include } = JSON.parse(readFileSync(join(root, 'tsconfig.json'), 'utf8'))
  for (const name of ['node_modules/.bin', 'dist/src', ...include])
    mkdirSync(join(folder, name), { recursive: true })
  const source = join(folder, 'src/server.ts')
  writeFileSync(source, '')
  writeFileSync(join(folder, 'node_modules/.bin/tsc'), COMPILER, { mode: 0o755 })
  writeFileSync(join(folder, 'dist/src/server.js'), GATEWAY)

  const dev = spawn('npm', ['run', '-s', 'dev'], { cwd: folder, stdio: ['ignore', 'pipe', 'inherit'] })
  const said: string[] = []
  const lines = createInterface(dev.stdout).on('line', (line) => said.push(line))
  await once(lines, 'line')
  t.same(said, ['serving'])
  writeFileSync(source, '// edited')
  await once(lines, 'line')
  t.same(said, ['serving', 'compiles'])
  dev.kill('SIGTERM')
  // A process that is left over would hold its output open, for a minute.
  const from = performance.now()
  await once(dev, 'close')
  t.ok(performance.now() - from < 30_000)
  t.same(said, ['serving', 'compiles', 'leaving'])
})
