// `npm test`: runs the compiled test files in a few processes, several at a time, and sums up the results. `npx tap` runs
// the same files, each in its own process, and measures coverage; the code that it loads into every process and thread for
// that costs a quarter of the time.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import Summary from './tap-summary.mjs'

const ROOT = 'dist/test'
/** More than there are processors: the long files spend half their time waiting for leases, servers and deadlines. */
const AT_ONCE = availableParallelism() + 2
/**
 * Time limits: PATIENCE, in seconds, for a file that sets none; LONGEST_MS for one that hangs; LEAVING_MS for one that has
 * told its plan, which comes last: what a test that failed has left open keeps its process.
 */
const PATIENCE = { TAP_TIMEOUT: '600' }
const LONGEST_MS = 20 * 60_000
const LEAVING_MS = 60_000
const PLAN = /^1\.\.\d/m

/**
 * tap follows every promise with asynchronous hooks, up to a tenth of a file's processor time, to name the test that an
 * uncaught error belongs to. Without them such an error ends the file, which then fails by its exit code.
 */
const NO_HOOKS = `data:text/javascript,${encodeURIComponent(`
  import hooks from 'node:async_hooks'
  import { syncBuiltinESMExports } from 'node:module'
  hooks.createHook = () => ({ enable() {}, disable() {} })
  syncBuiltinESMExports()`)}`

/**
 * Files that run in one process, one after another: a process takes half a second before its first test, and two where it
 * loads a gateway. A file belongs to the first line that fits. The longest ones start first: what starts last runs alone.
 */
const PROCESSES = [
  /^e2e\/chaos/,
  /^e2e\/session-tools/,
  /^mcp\//,
  /^e2e\/(access|failures|refused)/,
  /^e2e\/readme/,
  /^e2e\/toolbox/,
  /^e2e\/(browser|connector|streams)/,
  /^e2e\/recovery/,
  /^store\/(embedded|full|old|store)/,
  /^routes\//,
  /^(cli|scripts)\b/,
  /^[^/]+$/,
  /^e2e\//,
  /^store\//,
  /^turns\//,
  /^credentials\//,
  /^bus\//,
  /^tools\/[^/]+$/,
  /^(chat|config|emulators|llm|providers)\//,
  /^tools\/schema\//,
  /^/,
]
// Found by their sources: the compiled file of a renamed test is still in dist/.
const files = readdirSync('test', { recursive: true })
  .filter((file) => file.endsWith('.test.ts'))
  .sort()
const runs = PROCESSES.map((pattern) =>
  files
    .filter((file) => PROCESSES.find((one) => one.test(file)) === pattern)
    .map((file) => `${ROOT}/${file.replace(/ts$/, 'js')}`),
).filter((together) => together.length > 0)

const summary = new Summary()
summary.pipe(process.stdout)
summary.write('TAP version 14\n')
let done = 0
const work = async () => {
  for (let files = runs.shift(); files; files = runs.shift()) {
    const { said, ended, untold } = await run(files)
    // Each file is a test of one list, whichever process it ran in.
    summary.write(
      said
        .replace(/^(TAP version|1\.\.).*\n/gm, '')
        .replace(/^(not ok|ok) \d+/gm, (_, verdict) => `${verdict} ${++done}`),
    )
    for (const file of untold) summary.write(`not ok ${++done} - ${file}\n  ---\n  ended: ${ended}\n  ...\n`)
  }
}
await Promise.all(Array.from({ length: AT_ONCE }, work))
summary.write(`1..${done}\n`)
summary.end(() => {
  process.exitCode = summary.isSound() ? 0 : 1
})

async function run(files) {
  const program = ['--enable-source-maps', '--import', NO_HOOKS, 'scripts/together.mjs', ...files]
  const child = spawn(process.execPath, program, {
    env: { ...process.env, ...PATIENCE },
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: LONGEST_MS,
    killSignal: 'SIGKILL',
  })
  let said = ''
  let lines = ''
  let leaving
  child.stdout.setEncoding('utf8').on('data', (chunk) => {
    said += chunk
    lines += chunk
    if (PLAN.test(lines)) leaving ??= setTimeout(() => child.kill('SIGKILL'), LEAVING_MS)
    lines = lines.slice(lines.lastIndexOf('\n') + 1)
  })
  const [code, signal] = await once(child, 'close')
  clearTimeout(leaving)
  const hasPlan = PLAN.test(said)
  const ended = `with ${signal ?? code}${hasPlan ? '' : ', without a plan'}`
  // Files that the process did not come to; else all of them, if it failed and no test of theirs did.
  let untold = files.filter((file) => !said.includes(` - ${file} `))
  if (untold.length === 0 && !(hasPlan && code === (/^not ok/m.test(said) ? 1 : 0)))
    untold = [files.join(' ')]
  return { said: `${said}\n`, ended, untold }
}
