/**
 * The main job on screen: one conversation, every provider path, a real MCP server, tools that come in
 * mid-chat. The models are emulated on this machine; the gateway and the MCP servers are real.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { closeVendors, rootsOf, startVendors, type Vendors } from '../test/emulators/vendors.ts'
import { createClient } from './client.ts'
import { flag } from './flag.ts'
import { memoryServer, startBaton, startEverything, stopAll } from './processes.ts'

const USAGE = `npm run demo             walks through it and ends with status 0
npm run demo -- --keep   leaves everything running, and tells how to go on with curl`
const isKept = flag('keep', USAGE)

/** The paths to a model. The secrets are made up: only the emulators know them. */
const PATHS = {
  'OpenAI, API key': {
    model: 'gpt-5.6-sol',
    credential: { provider: 'openai', kind: 'api_key', api_key: 'sk-demo-openai' },
  },
  'OpenAI, ChatGPT login': {
    model: 'gpt-5.6-sol',
    credential: { provider: 'openai', kind: 'oauth', access_token: 'demo-chatgpt', account_id: 'acct-demo' },
  },
  'Anthropic, API key': {
    model: 'claude-opus-5-5',
    credential: { provider: 'anthropic', kind: 'api_key', api_key: 'sk-ant-api03-demo' },
  },
  'Anthropic, bearer login': {
    model: 'claude-opus-5-5',
    credential: { provider: 'anthropic', kind: 'oauth', access_token: 'sk-ant-oat01-demo' },
  },
  'Gemini, API key': {
    model: 'gemini-3.8-flash',
    credential: { provider: 'gemini', kind: 'api_key', api_key: 'demo-gemini' },
  },
  'Gemini, Code Assist login': {
    model: 'gemini-3-flash-preview',
    credential: { provider: 'gemini', kind: 'oauth', access_token: 'ya29.demo', project_id: 'demo-project' },
  },
  'Gemini, OAuth client of your own': {
    model: 'gemini-3.8-flash',
    credential: {
      provider: 'gemini',
      kind: 'oauth',
      path: 'public',
      access_token: 'demo-gemini-client',
      quota_project: 'demo-project',
    },
  },
}
type Path = keyof typeof PATHS

const say = (line = '') => console.log(line)
const title = (text: string) => say(process.stdout.isTTY ? `\n\x1b[1m${text}\x1b[0m` : `\n${text}`)

const folder = mkdtempSync(join(tmpdir(), 'baton-demo-'))
let vendors: Vendors | undefined
let closed: Promise<void> | undefined
const close = () => {
  closed ??= stopAll().then(async () => {
    if (vendors) await closeVendors(vendors)
    rmSync(folder, { recursive: true, force: true })
  })
  return closed
}
const end = () => void close().then(() => process.exit())
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, end)
// Whoever reads has enough (`| head`).
process.stdout.on('error', end)

process.exitCode = 1
try {
  await walk()
  process.exitCode = 0
  if (isKept) await new Promise(() => setInterval(() => {}, 1 << 30))
} catch (failure) {
  // A process that was told to end breaks off its work: that is no failure.
  if (!closed) console.error(failure)
}
await close()

async function walk(): Promise<void> {
  title('Starting: three emulated model services, two real MCP servers, one gateway')
  vendors = await startVendors()
  const everything = await startEverything()
  const baton = await startBaton(folder, {
    BATON_DATA_DIR: join(folder, 'data'),
    BATON_ALLOW_STDIO_CONNECTORS: 'true',
    BATON_ENABLE_OAUTH: 'openai,anthropic,gemini',
    ...rootsOf(vendors),
  })
  say('The models are EMULATED: they do what the text says. The rest is real. Lines that they know:')
  say('  call <tool> with <json>   calls the tool')
  say('  think                     thinks first')
  say('  slow <n> <ms>             speaks in n pieces, so many milliseconds apart')
  say(`Gateway:    ${baton}   (docs: ${baton}/docs)`)
  say(`MCP server: ${everything}   (@modelcontextprotocol/server-everything)`)

  const api = createClient(baton)
  const targets = await addCredentials(api)
  await api.post('/v1/connectors', { name: 'everything', transport: 'streamable_http', url: everything })
  const { id } = await api.post('/v1/connectors', {
    name: 'memory',
    transport: 'stdio',
    ...memoryServer(folder),
  })
  // Its list is fetched and kept now: else the answer might end before the process has started when it is bound.
  await api.post(`/v1/connectors/${id}/test`, {})

  for (const [path, target] of Object.entries(targets)) {
    title(`A chat with a tool call: ${path} (${target.model})`)
    const session = await api.post('/v1/sessions', {
      ...target,
      instructions: 'You are a helpful assistant.',
      connectors: ['everything'],
    })
    const answer = await api.turn(session.id, `call everything__get-sum with {"a": 19, "b": 23}`, say)
    if (!answer.includes('42')) throw new Error(`${path}: the tool's answer is missing in: ${answer}`)
  }
  await handOver(api, targets)
  await addTool(api, targets)
  title('Done: every path called a real tool, a chat changed hands, a tool came in while the model spoke.')
  if (!isKept) return
  say(`\nStill running; Ctrl-C ends it. Go on with curl:\n`)
  say(`  curl -s ${baton}/v1/sessions | head -c 400`)
  say(`  S=$(curl -s ${baton}/v1/sessions -H 'content-type: application/json' \\`)
  say(
    `    -d '{"provider":"anthropic","model":"claude-opus-5-5","connectors":["everything"]}' | node -pe 'JSON.parse(fs.readFileSync(0)).id')`,
  )
  say(`  curl -sN ${baton}/v1/sessions/$S/turns -H 'content-type: application/json' \\`)
  say(`    -d '{"input":"call everything__echo with {\\"message\\":\\"hello\\"}"}'`)
}

type Api = ReturnType<typeof createClient>

/** The fields that a session on a path is made with, or changed to. */
type Targets = Record<Path, { provider: string; model: string; credential_id: string }>

/** One credential for each path. */
async function addCredentials(api: Api): Promise<Targets> {
  const targets: Partial<Targets> = {}
  for (const [path, { model, credential }] of Object.entries(PATHS)) {
    const isDefault = credential.kind === 'api_key'
    const { id } = await api.post('/v1/credentials', { ...credential, name: path, default: isDefault })
    targets[path as Path] = { provider: credential.provider, model, credential_id: id }
  }
  return targets as Targets
}

async function handOver(api: Api, targets: Targets): Promise<void> {
  title('One conversation, handed from model to model in mid-chat')
  const session = await api.post('/v1/sessions', {
    ...targets['OpenAI, API key'],
    connectors: ['everything'],
  })
  await api.turn(session.id, 'think\ncall everything__echo with {"message":"remember the number 7"}', say)
  for (const path of ['Anthropic, API key', 'Gemini, API key', 'OpenAI, ChatGPT login'] as const) {
    const { provider, model } = targets[path]
    await api.patch(`/v1/sessions/${session.id}`, targets[path])
    say(`→ now ${provider} (${model}), with the same history`)
    await api.turn(session.id, `call everything__echo with {"message":"still here, on ${provider}"}`, say)
  }
  const { data } = await api.get(`/v1/sessions/${session.id}/messages`)
  say(`The canonical history holds ${data.length} messages, in nobody's format but our own.`)
}

async function addTool(api: Api, targets: Targets): Promise<void> {
  title('A tool added while the model is speaking, applied now')
  const session = await api.post('/v1/sessions', {
    ...targets['Anthropic, API key'],
    connectors: ['everything'],
  })
  const script = 'slow 40 50\ncall memory__read_graph with {}'
  let isAdded = false
  const answer = await api.turn(session.id, script, say, async (event) => {
    if (event !== 'content.delta' || isAdded) return
    isAdded = true
    say('   … binding the connector "memory" with apply=now while this answer streams …')
    const change = await api.put(`/v1/sessions/${session.id}/connectors/memory`, { apply: 'now' })
    say(`   → effective: ${JSON.stringify(change.effective)}, ${change.added.length} tools added`)
  })
  if (!answer.includes('entities')) throw new Error(`the added tool was not called: ${answer}`)
}
