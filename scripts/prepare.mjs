// Runs on `npm ci` and `npm install`. Builds dist/ when the compiler is there; with --omit=dev it is
// not, and an image is expected to have copied dist/ in.
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'

if (existsSync('node_modules/typescript/package.json')) {
  const built = spawnSync('npm', ['run', '-s', 'build'], { stdio: 'inherit' })
  process.exitCode = built.status ?? 1
} else if (!existsSync('dist/src/server.js')) {
  console.error('no compiler and no dist/: run npm ci without --omit=dev once, or copy dist/ in')
  process.exitCode = 1
}
