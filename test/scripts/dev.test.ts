/** `npm run dev`, with a compiler and a gateway of the test's own. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { scratch } from '../scratch.ts'

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../../..')

/** A compiler like TypeScript's: a process that starts another one, and passes no signal on. */
const COMPILER = `#!/bin/sh
case "$*" in *--watch*) sleep 60; echo ended ;; esac
`
const GATEWAY = `
process.on('SIGTERM', () => { console.log('leaving'); process.exit() })
setTimeout(() => {}, 60_000)
console.log('serving')
`

t.test('the compiler and the gateway that npm run dev starts end with it', async (t) => {
  const folder = scratch(t)
  for (const file of ['package.json', 'scripts/dev.mjs']) {
    mkdirSync(dirname(join(folder, file)), { recursive: true })
    copyFileSync(join(root, file), join(folder, file))
  }
  for (const name of ['node_modules/.bin', 'dist/src']) mkdirSync(join(folder, name), { recursive: true })
  writeFileSync(join(folder, 'node_modules/.bin/tsc'), COMPILER, { mode: 0o755 })
  writeFileSync(join(folder, 'dist/src/server.js'), GATEWAY)

  const dev = spawn('npm', ['run', '-s', 'dev'], { cwd: folder, stdio: ['ignore', 'pipe', 'inherit'] })
  const said: string[] = []
  const lines = createInterface(dev.stdout).on('line', (line) => said.push(line))
  await once(lines, 'line')
  t.same(said, ['serving'])
  dev.kill('SIGTERM')
  // A process that is left over would hold its output open, for a minute.
  const from = performance.now()
  await once(dev, 'close')
  t.ok(performance.now() - from < 30_000)
  t.match(said, ['serving', 'leaving'])
})
