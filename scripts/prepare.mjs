// Runs on `npm ci` and `npm install`. If npm's `ignore-scripts` prevents that, commands run it that find no dist/, or one
// that is older than the compiler.
// Builds dist/ if the compiler is there; with --omit=dev or NODE_ENV=production it is not, and an image must have
// copied dist/ in.
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'

const why =
  'npm leaves the compiler out with --omit=dev and with NODE_ENV=production. Run npm ci --include=dev'

if (existsSync('node_modules/typescript/package.json')) {
  const built = spawnSync('npm', ['run', '-s', 'build'], { stdio: 'inherit' })
  process.exitCode = built.status ?? 1
} else if (!existsSync('dist/src/server.js')) {
  console.error(`no compiler and no dist/: ${why}, or copy dist/ in`)
  process.exitCode = 1
} else if (existsSync('src')) {
  // After `git pull` the old version would keep running unnoticed.
  console.error(`dist/ is left as it was, though src/ may be newer: ${why} to build it`)
}
