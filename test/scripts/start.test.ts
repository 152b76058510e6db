/** Installing and starting where npm builds nothing: its `ignore-scripts` is set, or the compiler was left out. */
import { spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { scratch } from '../scratch.ts'

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../../..')

const COMPILER = `#!/bin/sh
mkdir -p dist/src dist/demo
echo compiled
for file in src/server demo/demo demo/emulators; do echo 'console.log("serving")' >dist/$file.js; done
`
const COMMANDS = ['start', 'demo', 'emulators']
const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
/** What a command does before it runs what is compiled. One that builds as `start` does needs no walk of its own. */
const builds = Object.values<string>(scripts).flatMap(
  (script) => /^(.*?)node --enable-source-maps dist\//.exec(script)?.[1] ?? [],
)
/** In place of the database that the build makes last. */
const TEMPLATE = 'import("node:fs").then((fs) => fs.writeFileSync("dist/pglite-template.json", ""))'
/** In place of the runner of the tests. */
const RUNNER = 'await import("../dist/src/server.js")'

function checkout(t: Test): string {
  const folder = scratch(t)
  for (const file of ['package.json', 'scripts/current.sh', 'scripts/prepare.mjs']) {
    mkdirSync(dirname(join(folder, file)), { recursive: true })
    copyFileSync(join(root, file), join(folder, file))
  }
  writeFileSync(join(folder, 'scripts/template.mjs'), TEMPLATE)
  writeFileSync(join(folder, 'scripts/test.mjs'), RUNNER)
  return folder
}

const npm = (cwd: string, command: string) =>
  spawnSync('npm', ['run', '-s', command], {
    cwd,
    encoding: 'utf8',
    env: { ...process.env, npm_config_ignore_scripts: 'true' },
  })

function withCompiler(folder: string): string {
  for (const name of ['typescript', '.bin'])
    mkdirSync(join(folder, 'node_modules', name), { recursive: true })
  writeFileSync(join(folder, 'node_modules/typescript/package.json'), '{}')
  writeFileSync(join(folder, 'node_modules/.bin/tsc'), COMPILER, { mode: 0o755 })
  return folder
}

t.test('the first commands of the README build what npm ci was kept from building', async (t) => {
  const folder = withCompiler(checkout(t))
  const { status, stdout, stderr } = npm(folder, 'start')
  t.match({ status, stdout }, { status: 0, stdout: /^serving\n$/ })
  t.match(stderr, 'compiled', 'the words of the build are not among those of the command')
  const anHourAgo = Date.now() / 1000 - 3600
  utimesSync(join(folder, 'dist/pglite-template.json'), anHourAgo, anHourAgo)
  t.match(npm(folder, 'start').stderr, 'compiled', 'once more when npm ci has laid the packages anew')
  for (const command of COMMANDS) {
    t.match(
      npm(folder, command),
      { status: 0, stdout: 'serving\n', stderr: '' },
      `${command} is built already`,
    )
  }
  t.strictSame([builds.length, new Set(builds).size], [6, 1], 'so does each that runs what is compiled')
  t.match(npm(withCompiler(checkout(t)), 'test'), { status: 0, stdout: 'compiled\nserving\n' })
})

t.test('a dist/ that is current need not be written to', async (t) => {
  const readOnly =
    'import fs from "node:fs"; import { syncBuiltinESMExports } from "node:module";' +
    'fs.writeFileSync = () => { throw new Error("read-only") }; syncBuiltinESMExports()'
  const args = ['--import', `data:text/javascript,${readOnly}`, 'scripts/template.mjs']
  const { status, stderr } = spawnSync(process.execPath, args, { cwd: root, encoding: 'utf8' })
  t.match({ status, stderr }, { status: 0, stderr: /^$/ })
})

t.test('without a compiler they say why it is not there, and what to do', async (t) => {
  const { status, stderr } = npm(checkout(t), 'start')
  t.equal(status, 1)
  t.match(stderr, /^no compiler and no dist.*NODE_ENV=production.*npm ci --include=dev.*\n$/)
})

t.test('an update that cannot build says that dist/ is the former one', async (t) => {
  const folder = checkout(t)
  const prepared = () => spawnSync('npm', ['run', '-s', 'prepare'], { cwd: folder, encoding: 'utf8' })
  mkdirSync(join(folder, 'dist/src'), { recursive: true })
  writeFileSync(join(folder, 'dist/src/server.js'), '')
  t.match(prepared(), { status: 0, stderr: /^$/ }, 'in an image there is nothing to build it from')
  mkdirSync(join(folder, 'src'))
  t.match(prepared(), { status: 0, stderr: /^dist\/ is left as it was.*npm ci --include=dev/ })
})
