/**
 * The main job on screen: one conversation, every provider path, a real MCP server, tools that come in
 * mid-chat. The models are emulated on this machine; the gateway and the MCP servers are real.
 *
 *   npm run demo             walks through it and ends with status 0
 *   npm run demo -- --keep   leaves everything running, and tells how to go on with curl
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { closeVendors, rootsOf, startVendors } from '../test/emulators/vendors.ts'
import { freePort } from '../test/servers.ts'
import { createClient } from './client.ts'
import { memoryServer, startBaton, startEverything } from './processes.ts'

const { values } = parseArgs({ options: { keep: { type: 'boolean', default: false } } })

/** What each path is called here, and the session that walks it. */
const PATHS = [
  { path: 'OpenAI, API key', provider: 'openai', model: 'gpt-5.6-sol', credential: 'openai-key' },
  { path: 'OpenAI, ChatGPT login', provider: 'openai', model: 'gpt-5.6-sol', credential: 'openai-login' },
  {
    path: 'Anthropic, API key',
    provider: 'anthropic',
    model: 'claude-opus-5-5',
    credential: 'anthropic-key',
  },
  {
    path: 'Anthropic, bearer login',
    provider: 'anthropic',
    model: 'claude-opus-5-5',
    credential: 'anthropic-login',
  },
  { path: 'Gemini, API key', provider: 'gemini', model: 'gemini-3.8-flash', credential: 'gemini-key' },
  {
    path: 'Gemini, Code Assist login',
    provider: 'gemini',
    model: 'gemini-3-flash-preview',
    credential: 'gemini-login',
  },
  {
    path: 'Gemini, OAuth client of your own',
    provider: 'gemini',
    model: 'gemini-3.8-flash',
    credential: 'gemini-client',
  },
] as const

const say = (line = '') => console.log(line)
const title = (text: string) => say(`\n\x1b[1m${text}\x1b[0m`)

const folder = mkdtempSync(join(tmpdir(), 'baton-demo-'))
const closers: (() => Promise<unknown> | unknown)[] = [() => rmSync(folder, { recursive: true, force: true })]
const close = async () => {
  for (const one of closers.reverse()) await one()
}
process.once('SIGINT', () => void close().then(() => process.exit(0)))

try {
  await walk()
  if (values.keep) await new Promise(() => setInterval(() => {}, 1 << 30))
} catch (failure) {
  console.error(failure)
  process.exitCode = 1
}
await close()

async function walk(): Promise<void> {
  title('Starting: three emulated model services, two real MCP servers, one gateway')
  const vendors = await startVendors()
  closers.push(() => closeVendors(vendors))
  const everything = await startEverything()
  closers.push(everything.stop)
  const baton = await startBaton(folder, await freePort(), {
    BATON_DATA_DIR: join(folder, 'data'),
    BATON_ALLOW_STDIO_CONNECTORS: 'true',
    BATON_ENABLE_OAUTH: 'openai,anthropic,gemini',
    ...rootsOf(vendors),
  })
  closers.push(baton.stop)
  say('The models are EMULATED: they do what the text says. The rest is real. Lines that they know:')
  say('  call <tool> with <json>   calls the tool')
  say('  think                     thinks first')
  say('  slow <n> <ms>             speaks in n pieces, so many milliseconds apart')
  say(`Gateway:    ${baton.url}   (docs: ${baton.url}/docs)`)
  say(`MCP server: ${everything.url}   (@modelcontextprotocol/server-everything)`)

  const api = createClient(baton.url)
  const credentials = await addCredentials(api)
  await api.post('/v1/connectors', { name: 'everything', transport: 'streamable_http', url: everything.url })
  const { id } = await api.post('/v1/connectors', {
    name: 'memory',
    transport: 'stdio',
    ...memoryServer(folder),
  })
  // Its list is kept: when it is bound in mid-answer, the answer does not end before a process has started.
  await api.post(`/v1/connectors/${id}/test`, {})

  for (const { path, provider, model, credential } of PATHS) {
    title(`A chat with a tool call: ${path} (${model})`)
    const session = await api.post('/v1/sessions', {
      provider,
      model,
      credential_id: credentials[credential],
      instructions: 'You are a helpful assistant.',
      connectors: ['everything'],
    })
    const answer = await api.turn(session.id, `call everything__get-sum with {"a": 19, "b": 23}`, say)
    if (!answer.includes('42')) throw new Error(`${path}: the tool's answer is missing in: ${answer}`)
  }
  await handOver(api, credentials)
  await addTool(api, credentials)
  title('Done: every path called a real tool, a chat changed hands, a tool came in while the model spoke.')
  if (!values.keep) return
  say(`\nStill running; Ctrl-C ends it. Go on with curl:\n`)
  say(`  curl -s ${baton.url}/v1/sessions | head -c 400`)
  say(`  S=$(curl -s ${baton.url}/v1/sessions -H 'content-type: application/json' \\`)
  say(
    `    -d '{"provider":"anthropic","model":"claude-opus-5-5","connectors":["everything"]}' | node -pe 'JSON.parse(fs.readFileSync(0)).id')`,
  )
  say(`  curl -N ${baton.url}/v1/sessions/$S/turns -H 'content-type: application/json' \\`)
  say(`    -d '{"input":"call everything__echo with {\\"message\\":\\"hello\\"}"}'`)
}

type Api = ReturnType<typeof createClient>

/** One credential a path; the secrets are made up and only the emulators know them. */
async function addCredentials(api: Api): Promise<Record<string, string>> {
  const rows = {
    'openai-key': { provider: 'openai', kind: 'api_key', api_key: 'sk-demo-openai' },
    'openai-login': {
      provider: 'openai',
      kind: 'oauth',
      access_token: 'demo-chatgpt',
      account_id: 'acct-demo',
    },
    'anthropic-key': { provider: 'anthropic', kind: 'api_key', api_key: 'sk-ant-api03-demo' },
    'anthropic-login': { provider: 'anthropic', kind: 'oauth', access_token: 'sk-ant-oat01-demo' },
    'gemini-key': { provider: 'gemini', kind: 'api_key', api_key: 'demo-gemini' },
    'gemini-login': {
      provider: 'gemini',
      kind: 'oauth',
      access_token: 'ya29.demo',
      project_id: 'demo-project',
    },
    'gemini-client': {
      provider: 'gemini',
      kind: 'oauth',
      path: 'public',
      access_token: 'demo-gemini-client',
      quota_project: 'demo-project',
    },
  }
  const ids: Record<string, string> = {}
  for (const [name, row] of Object.entries(rows)) {
    ids[name] = (await api.post('/v1/credentials', { ...row, name, default: row.kind === 'api_key' })).id
  }
  return ids
}

async function handOver(api: Api, credentials: Record<string, string>): Promise<void> {
  title('One conversation, handed from model to model in mid-chat')
  const session = await api.post('/v1/sessions', {
    provider: 'openai',
    model: 'gpt-5.6-sol',
    credential_id: credentials['openai-key'],
    connectors: ['everything'],
  })
  await api.turn(session.id, 'think\ncall everything__echo with {"message":"remember the number 7"}', say)
  for (const [provider, model, credential] of [
    ['anthropic', 'claude-opus-5-5', 'anthropic-key'],
    ['gemini', 'gemini-3.8-flash', 'gemini-key'],
    ['openai', 'gpt-5.6-sol', 'openai-login'],
  ] as const) {
    await api.patch(`/v1/sessions/${session.id}`, { provider, model, credential_id: credentials[credential] })
    say(`→ now ${provider} (${model}), with the same history`)
    await api.turn(session.id, `call everything__echo with {"message":"still here, on ${provider}"}`, say)
  }
  const { data } = await api.get(`/v1/sessions/${session.id}/messages`)
  say(`The canonical history holds ${data.length} messages, in nobody's format but our own.`)
}

async function addTool(api: Api, credentials: Record<string, string>): Promise<void> {
  title('A tool added while the model is speaking, applied now')
  const session = await api.post('/v1/sessions', {
    provider: 'anthropic',
    model: 'claude-opus-5-5',
    credential_id: credentials['anthropic-key'],
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
