// The second half of `npm run dev`: serves the compiled code and follows edits. Each command starts a child process
// that outlives it if only the command is signalled. So each command is a process group, signalled as a whole.
import { spawn } from 'node:child_process'

const COMMANDS = [
  ['node_modules/.bin/tsc', '-p', 'tsconfig.build.json', '--watch', '--preserveWatchOutput'],
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
