// The second half of `npm run dev`: serves the compiled code and follows edits. Each command starts a child process
// that outlives it if only the command is signalled. So each command is a process group, signalled as a whole.
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'

// The compiler's own `--watch` sees no edit in containers (microsoft/TypeScript#63646), nor in a folder right below /root,
// /srv or /tmp.
const FOLLOW = `
while :; do
  touch dist/.edits
  node_modules/.bin/tsc -p tsconfig.build.json
  until [ -n "$(find "$@" -newer dist/.edits)" ]; do sleep 1; done
done`
const { include } = JSON.parse(readFileSync('tsconfig.json', 'utf8'))
const COMMANDS = [
  ['sh', '-c', FOLLOW, 'sh', ...include],
  [process.execPath, '--watch', '--enable-source-maps', 'dist/src/server.js'],
]
const stdio = ['ignore', 'inherit', 'inherit']
const groups = COMMANDS.map(([command, ...given]) => spawn(command, given, { stdio, detached: true }))

const tell = (signal) => {
  for (const { pid } of groups) {
    try {
      process.kill(-pid, signal)
    } catch {
      // The group has ended already.
    }
  }
}
for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(signal, tell)
