/** The command line's process: real streams, real files. Everything else is in src/cli/. */
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { format } from 'node:util'
import type { Io } from './cli/command.ts'
import { runCli } from './cli/main.ts'
import { oneLine } from './text.ts'

const io: Io = {
  say: (line) => void process.stdout.write(`${line}\n`),
  note: (line) => void process.stderr.write(`${line}\n`),
  ask: (question) =>
    new Promise((resolve) => {
      process.stdin.ref?.()
      const lines = createInterface({ input: process.stdin, output: process.stderr })
      lines.question(question, (line) => {
        resolve(line)
        lines.close()
      })
      lines.once('close', () => {
        resolve(null)
        // A pipe that stays open is not read any further, and must not keep the process alive.
        process.stdin.unref?.()
      })
    }),
  sleep: (ms) => sleep(ms),
  readFile: (path) => readFileSync(path, 'utf8'),
}

// The MCP SDK writes names there that servers gave their tools: a terminal must not obey strangers' words.
console.warn = (...words) => io.note(oneLine(format(...words)))
// The work goes on without a reader: half a rotation of keys is worth less than a whole one that nobody heard of.
process.stdout.on('error', ({ code, message }: NodeJS.ErrnoException) => {
  // A reader that has enough (`| head -1`) needs no words.
  if (code !== 'EPIPE') io.note(`The answer cannot be written: ${message}`)
  process.exitCode = 1
})
// Nor does it end with whoever reads the notes (`2>&1 | head -1`), to whom nothing more can be said.
process.stderr.on('error', () => {})
const code = await runCli(process.argv.slice(2), { env: process.env, cwd: process.cwd(), io })
process.exitCode ??= code
