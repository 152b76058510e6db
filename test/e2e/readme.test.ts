/**
 * The README's walk with curl, word for word, on every path against the emulated models and a real MCP server; and
 * the demo it names.
 */
import { execFile, spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import t from 'tap'
import { startEverything } from '../../demo/processes.ts'
import { openWorld } from './harness.ts'

const README = fileURLToPath(new URL('../../../README.md', import.meta.url))

const hasCurl = spawnSync('curl', ['--version']).status === 0 || process.env.CI === 'true'

t.test('the walk does what it says', { skip: hasCurl ? false : 'curl is not there' }, async (t) => {
  const everything = await startEverything()
  t.teardown(everything.stop)
  const tools = everything.url.replace(/\/mcp$/, '')
  const world = await openWorld(t, 'embedded')
  const text = readFileSync(README, 'utf8')
  const script = [...text.matchAll(/```sh\n([\s\S]*?)```/g)].map(([, block]) => block).join('\n')
  const here = script
    .replace('http://127.0.0.1:8787', world.api.url)
    .replaceAll('http://127.0.0.1:3001', tools)
  t.notMatch(here, /127\.0\.0\.1:(8787|3001)/)
  // Started outside of any other shell, bash takes a socket as its input for a remote login and reads its rc files.
  const shell = ['--norc', '-euo', 'pipefail', '-c', here]
  const { stdout, stderr } = await promisify(execFile)('bash', shell, { maxBuffer: 1 << 26 })
  t.equal(stderr, '')
  const ends = [...stdout.matchAll(/^event: (turn\.(?:completed|failed|cancelled))$/gm)].map(
    ([, type]) => type,
  )
  t.same(
    ends,
    Array.from({ length: 9 }, () => 'turn.completed'),
    'two turns of the walk, one on each path',
  )
  const { data } = await world.api.get('/v1/tool-executions')
  t.equal(data.length, 8)
  for (const call of data) t.match(call, { tool: 'docs.get-sum', outcome: 'ok', arguments: { a: 19, b: 23 } })
  const answers = stdout.match(/"text":"The tools answered: The sum of 19 and 23 is 42\."/g) ?? []
  t.ok(answers.length >= 8, 'each answers with the result')
  t.notMatch(stdout, /"error":\{/)
  t.match(stdout, /"method":"POST","url":"[^"]+:streamGenerateContent/, 'the preview shows a request')
  const { data: sessions } = await world.api.get('/v1/sessions')
  const paths = sessions.map(
    ({ provider, model }: { provider: string; model: string }) => `${provider} ${model}`,
  )
  t.equal(new Set(paths).size, 4)
})

t.test('the demo shows what it promises, whatever the shell is set to', async (t) => {
  const demo = fileURLToPath(new URL('../../demo/demo.js', import.meta.url))
  const env = {
    ...process.env,
    BATON_AUTH: 'keys',
    DATABASE_URL: 'postgres://127.0.0.1:1/none',
    REDIS_URL: 'redis://127.0.0.1:1',
  }
  const { stdout } = await promisify(execFile)(process.execPath, [demo], { env })
  t.match(stdout, 'from":"restart"')
  t.match(stdout, 'Done: every path called a real tool')
})
