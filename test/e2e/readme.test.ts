/**
 * The README's walk with curl, word for word, on every path against the emulated models and a real MCP server; its
 * client for frontends; and the demo it names.
 */
import { execFile, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { text as textOf } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import t from 'tap'
import { startEverything, stopAll } from '../../demo/processes.ts'
import { scratch } from '../scratch.ts'
import { eventually } from '../waiting.ts'
import type { Json } from './client.ts'
import { BACKEND, openWorld } from './harness.ts'

const DEMO = fileURLToPath(new URL('../../demo/demo.js', import.meta.url))
const ROOT = fileURLToPath(new URL('../../..', import.meta.url))
const README = join(ROOT, 'README.md')

const missing = ['curl', 'bash'].find((program) => spawnSync(program, ['--version']).status !== 0)
const skip = process.env.CI !== 'true' && missing ? `${missing} is not there` : false

t.test('the walk does what the README says', { skip }, async (t) => {
  t.teardown(stopAll)
  const tools = (await startEverything()).replace(/\/mcp$/, '')
  const world = await openWorld(t, 'embedded')
  for (const id of Object.values(world.credentials)) await world.api.delete(`/v1/credentials/${id}`)
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
    'two turns of the walk, and one on each path',
  )
  const { data } = await world.api.get('/v1/tool-executions')
  t.equal(data.length, 8)
  for (const call of data) t.match(call, { tool: 'docs.get-sum', outcome: 'ok', arguments: { a: 19, b: 23 } })
  const answers = stdout.match(/"text":"The tools answered: The sum of 19 and 23 is 42\."/g) ?? []
  t.ok(answers.length >= 8, 'each of these turns answers with the result')
  t.notMatch(stdout, /"error":\{/)
  t.match(stdout, /"method":"POST","url":"[^"]+:streamGenerateContent/, 'the preview shows a request')
  const { data: sessions } = await world.api.get('/v1/sessions')
  const paths = sessions.map(
    ({ provider, model }: { provider: string; model: string }) => `${provider} ${model}`,
  )
  t.equal(new Set(paths).size, 4)
  for (const path of new Set<string>(paths)) {
    const [provider, model] = path.split(' ')
    const { id } = await world.api.post('/v1/sessions', { provider, model })
    const next = await world.api.post(`/v1/sessions/${id}/turns`, { input: 'Go on.', stream: false })
    t.equal(next.state, 'completed', `a session that names no credential goes on with ${path}`)
  }
})

t.test('the client for frontends goes on where it is cut off, and loses and repeats nothing', async (t) => {
  const world = await openWorld(t, BACKEND)
  const [, code = ''] = /```js\n([\s\S]*?)```/.exec(readFileSync(README, 'utf8')) ?? []
  const requests: string[] = []
  let silences = 0
  /**
   * The first answer never arrives, the next two are a proxy's own; the others break in the middle of a frame, or fall
   * silent there, as when the machine was asleep or a NAT forgot the connection.
   */
  const unsteady = async (url: string, request: RequestInit) => {
    const answer = await fetch(url, request)
    requests.push(`${request.method ?? 'GET'} ${answer.status}`)
    if (requests.length === 1) throw new TypeError('fetch failed')
    // As nginx answers where a replica hangs or does not take a connection.
    if (requests.length === 2) return new Response('<html>504 Gateway Time-out</html>', { status: 504 })
    // As Cloudflare answers for a server that does not.
    if (requests.length === 3) return new Response('error code: 522', { status: 522 })
    let left = 3000
    const isSilent = requests.length % 2 === 0
    const cut = new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, out) {
        out.enqueue(chunk.subarray(0, Math.max(left, 0)))
        left -= chunk.length
        if (left <= 0 && !isSilent) out.error(new Error('cut off'))
      },
      flush() {
        if (left > 0) return
        silences++
        return new Promise(() => {})
      },
    })
    return answer.body ? new Response(answer.body.pipeThrough(cut), answer) : answer
  }
  const module = `export default (fetch, setTimeout, baton, key) => {${code}; return { ask, follow }}`
  const client = await import(`data:text/javascript,${encodeURIComponent(module)}`)
  const soon = (wake: () => void, ms: number) => setTimeout(wake, ms / 100)
  const { ask, follow } = client.default(unsteady, soon, world.api.url, 'none')
  const session = await world.session('openai key')
  const events: Json[] = []
  await ask(session, 'slow 60 5', (event: Json) => events.push(event))
  t.equal(events[0].type, 'turn.created')
  t.equal(events.at(-1).type, 'turn.completed')
  const streamed = events.map(({ type, text }) => (type === 'content.delta' ? text : '')).join('')
  const { message } = events.find(({ type, message }) => type === 'message' && message.role === 'assistant')
  t.equal(streamed, message.parts[0].text)
  t.match(streamed, /^word1 .* word60$/)
  t.same(
    requests.slice(0, 4),
    ['POST 200', 'POST 200', 'POST 200', 'POST 200'],
    'the request is sent again, and the same turn comes back',
  )
  t.ok(requests.filter((one) => one === 'GET 200').length > 1, 'the stream was cut off more than once')
  t.ok(silences > 0, 'and fell silent')
  t.equal(requests.at(-1), 'GET 204')
  const again: Json[] = []
  await follow(events[0].turn_id, (event: Json) => again.push(event))
  t.same(again, events, 'a page that was reloaded gets the whole turn')
  const broken = 'one\u2028two\u2029three'
  const told: Json[] = []
  await ask(await world.session('openai key'), broken, (event: Json) => told.push(event))
  t.equal(
    told.findLast(({ type }) => type === 'message')?.message.parts[0].text,
    broken,
    'separators of lines and paragraphs, which JSON leaves as they are, do not cut an event short',
  )
  await t.rejects(
    ask('ses_0', 'hello', () => {}),
    { message: /No session ses_0 exists/, cause: { code: 'session_not_found' } },
  )
  const leaving = new AbortController()
  const left = await world.session('openai key')
  const asked = ask(
    left,
    'slow 60 5',
    ({ type }: Json) => type === 'step.started' && leaving.abort(),
    leaving.signal,
  )
  await t.rejects(asked, { name: 'AbortError' }, 'a page leaves a chat, and asks for no more of it')
  const [turn] = (await world.api.get(`/v1/sessions/${left}/turns`)).data
  t.match(await world.api.get(`/v1/turns/${turn.id}?wait=60`), { state: 'completed' }, 'whose turn goes on')
})

t.test('the demo shows what it promises, whatever the shell is set to', async (t) => {
  const env = {
    ...process.env,
    BATON_AUTH: 'keys',
    DATABASE_URL: 'postgres://127.0.0.1:1/none',
    REDIS_URL: 'redis://127.0.0.1:1',
    https_proxy: 'socks5://127.0.0.1:1',
  }
  const { stdout } = await promisify(execFile)(process.execPath, [DEMO], { env })
  t.equal(stdout.match(/A chat with a tool call: /g)?.length, 7, 'every path of the README')
  t.match(stdout, 'model > thinks: ')
  t.match(stdout, 'from":"restart"')
  t.match(stdout, 'Done: every path called a real tool')
})

t.test('a demo that is told to end while it starts leaves nothing behind', async (t) => {
  const folder = scratch(t)
  // From Node 22 on, npm keeps compiled code in the temporary folder.
  const env = { ...process.env, TMPDIR: folder, NODE_DISABLE_COMPILE_CACHE: '1' }
  // By npm, as the README has it: npm passes signals to its own child alone, which must not be a shell.
  const demo = spawn('npm', ['run', '-s', 'demo'], { cwd: ROOT, env, stdio: ['ignore', 'pipe', 'inherit'] })
  t.teardown(() => demo.kill('SIGKILL'))
  // One level at a time: folders that the demo makes and removes meanwhile would break a walk through all of them.
  await eventually(() => readdirSync(folder).some((name) => existsSync(join(folder, name, 'data'))))
  demo.stdout.resume()
  demo.kill('SIGTERM')
  // A process that is left over would hold the demo's output open.
  const isOver = once(demo, 'close').then(() => true)
  t.ok(await Promise.race([isOver, sleep(30_000, false, { ref: false })]))
  t.equal(demo.exitCode, 1)
  t.same(readdirSync(folder), [])
})

t.test('a demo whose reader has gone leaves nothing behind', async (t) => {
  const folder = scratch(t)
  const env = { ...process.env, TMPDIR: folder, NODE_DISABLE_COMPILE_CACHE: '1' }
  const demo = spawn(process.execPath, [DEMO], { env, stdio: ['ignore', 'pipe', 'pipe'] })
  t.teardown(() => demo.kill('SIGKILL'))
  await once(demo.stdout, 'data')
  demo.stdout.destroy()
  // A gateway that is left over would hold it open.
  const said = textOf(demo.stderr)
  t.equal(await Promise.race([said, sleep(30_000, 'it is still open', { ref: false })]), '')
  t.same(readdirSync(folder), [])
})
