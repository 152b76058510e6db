/** A configured server's last words on stderr are for the operator's log, not for owners and models. */
import t, { type Test } from 'tap'
import { type Mcp, McpError, type McpServerSpec } from '../../src/mcp/contract.ts'
import { createMcp } from '../../src/mcp/mcp.ts'
import { call } from './door.ts'
import { child } from './processes.ts'

const WORDS = 'cannot open /srv/operator/notes.db with hunter2-of-the-env'
const shell = (script: string, more: Partial<McpServerSpec> = {}): McpServerSpec => ({
  key: script,
  name: 'notes',
  transport: 'stdio',
  command: '/bin/sh',
  args: ['-c', script],
  env: { TOKEN: 'hunter2-of-the-env' },
  allowPrivate: true,
  ...more,
})

async function failure(
  t: Test,
  spec: McpServerSpec,
  use = (mcp: Mcp): Promise<unknown> => mcp.list(spec, { timeoutMs: 20_000 }),
) {
  const told: [string, string][] = []
  const mcp = createMcp({ onLastWords: (server, words) => told.push([server, words]) })
  t.teardown(() => mcp.close())
  const error = await use(mcp).catch((thrown: unknown) => thrown)
  if (!(error instanceof McpError)) throw new Error('it did not fail')
  return { error, told, status: mcp.status(spec.key) }
}

t.test("a configured server's last words go to the log only, and how it ended is told to all", async (t) => {
  const { error, told, status } = await failure(
    t,
    shell(`echo '${WORDS}' >&2; exit 7`, { isConfigured: true }),
  )
  t.match(error.message, /exited with code 7\]$/)
  t.notMatch(`${error.message} ${status.error}`, /operator|hunter2/)
  t.equal(error.lastWords, 'cannot open /srv/operator/notes.db with ***', 'declared secrets are masked')
  t.same(told, [['notes', error.lastWords]])
})

t.test('so do the last words of one that ends in a call', async (t) => {
  const spec = child('good', { isConfigured: true })
  const { error, told } = await failure(t, spec, (mcp) => call(mcp, spec, 'crash'))
  t.match(error, { kind: 'disconnected', message: /exited with code 3\]$/ })
  t.same(told, [['child', 'last words']])
})

t.test('of long last words the start is told, too, unless it is lost', async (t) => {
  const words = "printf 'No driver' >&2; sleep 0.1; printf '%03000d at the end' 0 >&2; exit 7"
  const long = shell(words, { isConfigured: true })
  t.match((await failure(t, long)).error.lastWords, /^No driver0{391} … 0{589} at the end$/)
  const lost = shell("printf 'No driver%09000d at the end' 0 >&2; exit 7", { isConfigured: true })
  t.match((await failure(t, lost)).error.lastWords, /^… 0{589} at the end$/)
})

t.test('last words that begin within a secret do not show half of it', async (t) => {
  const spec = shell(`printf '%s%0990d' "$TOKEN" 0 >&2; exit 7`, { isConfigured: true })
  t.match((await failure(t, spec)).error.lastWords, /^\*\*\*0+$/)
})

t.test('last words do not show the end of a secret that is longer than they are', async (t) => {
  const TOKEN = Array.from({ length: 1_200 }, (_, i) => `${i}-hunter`).join('')
  const spec = shell(`echo "$TOKEN is bad" >&2; exit 7`, { isConfigured: true, env: { TOKEN } })
  t.equal((await failure(t, spec)).error.lastWords, 'is bad')
  // These words are the end of a secret, too.
  const short = shell('echo "v1 is gone" >&2; exit 7', { isConfigured: true })
  t.equal(
    (await failure(t, short)).error.lastWords,
    'v1 is gone',
    'words that were not cut are left as they are',
  )
})

t.test('the path of a missing program is told to the operator only', async (t) => {
  const spec = shell('', { command: '/srv/operator/notes-server', isConfigured: true })
  const { error, told } = await failure(t, spec)
  t.match(error, { kind: 'unavailable', sent: false, message: 'notes cannot be started (ENOENT)' })
  t.match(told, [['notes', /operator.*ENOENT/]])
})

t.test('a command with its arguments in it is told to have them in args', async (t) => {
  const { error, told } = await failure(t, shell('', { command: 'npx -y notes-server' }))
  t.match(error.message, /ENOENT \[Its command is the program alone; arguments go into args\.\]$/)
  t.same(told, [], 'its owner, not the operator')
})

t.test('a program that is not in the PATH of servers is told where Baton looks', async (t) => {
  for (const isConfigured of [false, true]) {
    const { error } = await failure(t, shell('', { command: 'no-such-uvx', isConfigured }))
    t.match(error.message, /ENOENT\)? \[Baton does not search your shell's PATH: .*whole path.*env\.\]$/)
  }
  const { error } = await failure(t, shell('', { command: '/no/such/uvx' }))
  t.match(error.message, /ENOENT$/)
  const found = await failure(t, shell('', { command: 'passwd', env: { PATH: '/etc' } }))
  t.match(found.error.message, /EACCES$/)
})

t.test("the owner of a connector reads its program's last words in the error", async (t) => {
  const { error, told } = await failure(t, shell(`echo '${WORDS}' >&2; exit 7`))
  t.match(error.message, /exited with code 7; stderr: cannot open .*notes\.db with \*\*\*\]$/)
  t.same(told, [])
})
