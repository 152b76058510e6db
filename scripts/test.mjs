// `npm test`: runs the compiled test files, each in its own process or a folder of short ones in one, several
// processes at a time, and sums up the results. `npx tap` runs the same files and measures coverage; the code that it
// loads into every process and thread for that costs a quarter of the time.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { basename, dirname } from 'node:path'
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

/** Files of these folders take less time than the start of their process. */
const isQuick = (name) => /^(chat|config|emulators|llm|providers|tools\/schema)\//.test(name)
/** So do most files of these, though some wait. In each, no file awaits anything before its first test. */
const isShort = (name) => /^(bus|tools)\//.test(name)
/** Long files first, quick ones last: a long file that starts last costs its whole time. */
const place = (name) => (/^e2e\//.test(name) ? 0 : isQuick(name) ? 2 : 1)
// Found by their sources: the compiled file of a renamed test is still in dist/.
const files = readdirSync('test', { recursive: true })
  .filter((file) => file.endsWith('.test.ts'))
  .map((file) => file.replace(/ts$/, 'js'))
const named = new Map()
for (const file of files) {
  const name = isQuick(file) || isShort(file) ? `${dirname(file)}/` : file
  named.set(name, [...(named.get(name) ?? []), file])
}
const runs = [...named].sort(([a], [b]) => place(a) - place(b) || a.localeCompare(b))

const summary = new Summary()
summary.pipe(process.stdout)
summary.write(`TAP version 14\n1..${runs.length}\n`)
let done = 0
const work = async () => {
  for (let next = runs.shift(); next; next = runs.shift()) {
    const [name, files] = next
    const path = `${ROOT}/${name}`
    const { said, failure, ms } = await run(files)
    const indented = said.replace(/^TAP version.*\n/, '').replace(/^(?=.)/gm, '    ')
    const verdict = `${failure ? 'not ok' : 'ok'} ${++done} - ${path} # time=${ms}ms\n`
    const reason = failure ? `  ---\n  ended: ${failure}\n  ...\n` : ''
    summary.write(`# Subtest: ${path}\n${indented}${verdict}${reason}`)
  }
}
await Promise.all(Array.from({ length: AT_ONCE }, work))
summary.end(() => {
  process.exitCode = summary.isSound() ? 0 : 1
})

/**
 * A file that runs these of one folder. Static imports: between two dynamic ones tap knows of no test, and ends. A file,
 * since a program in `--eval` leaves options that a thread of a test's own takes over, and does not start with.
 */
function together(files) {
  const path = `${ROOT}/${dirname(files[0])}/together.mjs`
  writeFileSync(path, files.map((file) => `import './${basename(file)}'\n`).join(''))
  return path
}

async function run(files) {
  const from = performance.now()
  const program = files.length > 1 ? together(files) : `${ROOT}/${files[0]}`
  const child = spawn(process.execPath, ['--enable-source-maps', '--import', NO_HOOKS, program], {
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
  const failure = code === 0 && hasPlan ? null : `with ${signal ?? code}${hasPlan ? '' : ', without a plan'}`
  return { said, failure, ms: performance.now() - from }
}
