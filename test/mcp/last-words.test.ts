/** What the process of a configured server says as it ends: for the operator's log, not for owners and models. */
import t, { type Test } from 'tap'
import { McpError, type McpServerSpec } from '../../src/mcp/contract.ts'
import { createMcp } from '../../src/mcp/mcp.ts'

t.setTimeout(60_000)

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

async function failure(t: Test, spec: McpServerSpec) {
  const told: [string, string][] = []
  const mcp = createMcp({ version: '0.1.0', onLastWords: (server, words) => told.push([server, words]) })
  t.teardown(() => mcp.close())
  const error = await mcp.list(spec, { timeoutMs: 20_000 }).catch((thrown: unknown) => thrown)
  if (!(error instanceof McpError)) throw new Error('it did not fail')
  return { error, told, status: mcp.status(spec.key) }
}

t.test("a configured server's last words go to the log, how it ended to everybody", async (t) => {
  const { error, told, status } = await failure(
    t,
    shell(`echo '${WORDS}' >&2; exit 7`, { isConfigured: true }),
  )
  t.match(error.message, /exited with code 7\]$/)
  t.notMatch(`${error.message} ${status.error}`, /operator|hunter2/)
  t.equal(
    error.lastWords,
    'cannot open /srv/operator/notes.db with ***',
    'without what was declared as secret',
  )
  t.same(told, [['notes', error.lastWords]])
})

t.test('half a secret is none of the last words', async (t) => {
  const spec = shell(`printf '%s%0990d' "$TOKEN" 0 >&2; exit 7`, { isConfigured: true })
  t.match((await failure(t, spec)).error.lastWords, /^\*\*\*0+$/)
})

t.test('the last words hold no end of a secret that is longer than they are', async (t) => {
  const TOKEN = Array.from({ length: 1_200 }, (_, i) => `${i}-hunter`).join('')
  const spec = shell(`echo "$TOKEN is bad" >&2; exit 7`, { isConfigured: true, env: { TOKEN } })
  t.equal((await failure(t, spec)).error.lastWords, 'is bad')
  // The secret ends so, too.
  const short = shell('echo "v1 is gone" >&2; exit 7', { isConfigured: true })
  t.equal((await failure(t, short)).error.lastWords, 'v1 is gone', 'short ones are left as they are')
})

t.test('a program that is not there is named to the operator alone', async (t) => {
  const spec = shell('', { command: '/srv/operator/notes-server', isConfigured: true })
  const { error, told } = await failure(t, spec)
  t.match(error, { kind: 'unavailable', sent: false, message: 'notes cannot be started (ENOENT)' })
  t.match(told, [['notes', /operator.*ENOENT/]])
})

t.test("who made a connector reads its program's words in the error", async (t) => {
  const { error, told } = await failure(t, shell(`echo '${WORDS}' >&2; exit 7`))
  t.match(error.message, /exited with code 7; stderr: cannot open .*notes\.db with \*\*\*\]$/)
  t.same(told, [])
})
