// The second half of `npm run dev`: serves what is compiled, and follows edits. Both commands start a process of their
// own, which outlives them where they alone are told to end: each is a group, which is told as a whole.
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
      // It has ended already.
    }
  }
}
for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(signal, tell)
