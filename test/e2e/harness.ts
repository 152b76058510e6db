/**
 * A whole gateway on this machine: the three emulated vendors, test tool servers, and Baton on a free port,
 * in this process or in one of its own; over the embedded store with the bus in memory, and over PostgreSQL
 * with Redis where there are servers.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Logger, pino } from 'pino'
import type { Test } from 'tap'
import { createApp } from '../../src/app.ts'
import type { Config } from '../../src/config/config.ts'
import { loadConfig } from '../../src/config/load.ts'
import { onServer } from '../any-store.ts'
import type { Recorded } from '../emulators/http.ts'
import type { Script } from '../emulators/scene.ts'
import { closeVendors, rootsOf, startVendors, type Vendors } from '../emulators/vendors.ts'
import { gatewayProcess } from '../gateway-process.ts'
import { ON_SERVERS, SERVERS } from '../given-servers.ts'
import { scratch } from '../scratch.ts'
import { type Client, createClient, type Json } from './client.ts'
import { startToolServer, type TestTool, type ToolServer } from './tool-server.ts'

/** Ways to a model: a provider and a kind of credential. A login at Gemini's public API differs by a header only. */
export const PATHS = {
  'openai key': { provider: 'openai', model: 'gpt-5.6-sol' },
  'chatgpt login': { provider: 'openai', model: 'gpt-5.6-sol' },
  'anthropic key': { provider: 'anthropic', model: 'claude-opus-5-5' },
  'anthropic bearer': { provider: 'anthropic', model: 'claude-opus-5-5' },
  'gemini key': { provider: 'gemini', model: 'gemini-3.8-flash' },
  'code assist login': { provider: 'gemini', model: 'gemini-3-flash-preview' },
} as const
export type Path = keyof typeof PATHS
export const PATH_NAMES = Object.keys(PATHS) as Path[]
/** One path of each provider, for tests to which the kind of credential makes no difference. */
export const PROVIDERS: readonly Path[] = PATH_NAMES.filter(
  (path) => path === PATH_NAMES.find((other) => PATHS[other].provider === PATHS[path].provider),
)

const CREDENTIALS: Record<Path, Json> = {
  'openai key': { provider: 'openai', kind: 'api_key', api_key: 'sk-test-openai' },
  'chatgpt login': {
    provider: 'openai',
    kind: 'oauth',
    access_token: 'test-chatgpt',
    account_id: 'acct-test',
  },
  'anthropic key': { provider: 'anthropic', kind: 'api_key', api_key: 'sk-ant-api03-test' },
  'anthropic bearer': { provider: 'anthropic', kind: 'oauth', access_token: 'sk-ant-oat01-test' },
  'gemini key': { provider: 'gemini', kind: 'api_key', api_key: 'test-gemini' },
  'code assist login': {
    provider: 'gemini',
    kind: 'oauth',
    access_token: 'ya29.test',
    project_id: 'test-project',
  },
}

type Backend = 'embedded' | 'servers'
/** The backend for tests that need only one: the one that opens sooner. */
export const BACKEND: Backend = ON_SERVERS.skip ? 'embedded' : 'servers'

/** All paths on one backend; one path on the other, which differs in store and bus, and not in the providers. */
export const pathsIn = ({ backend }: World, paths: readonly Path[] = PATH_NAMES): readonly Path[] =>
  backend === BACKEND ? paths : paths.slice(0, 1)

export interface World {
  backend: Backend
  api: Client
  emulators: Vendors
  /** Credential ids by path */
  credentials: Record<Path, string>
  /** A new session on a path; the rest as `POST /v1/sessions` takes it. */
  session(path: Path, more?: Json): Promise<string>
  /** A tool server and its connector, named like this, closed with the world. */
  tools(name: string, tools?: Record<string, TestTool>): Promise<ToolServer & { id: string }>
  /** Stands in for the default scenes on every vendor; null: the default again. */
  script(play: Script | null): void
  /** Requests for answers of models that a session's vendor got, oldest first. */
  sent(path: Path): Recorded[]
  /** Ends the gateway, a process of its own by this signal, and starts it again on the same store. */
  restart(signal?: NodeJS.Signals): Promise<void>
  /** Ends the gateway for good. */
  stop(): Promise<void>
  /** Another replica on the same servers, ended with the world. */
  another(): Promise<Client>
  /** Holds `data`, the embedded store's folder */
  folder: string
  get(session: string): Promise<Json>
  messages(session: string): Promise<Json[]>
  /** A turn that is waited for; throws unless it answers 200. */
  run(session: string, input: string | Json): Promise<Json>
}

interface WorldOptions {
  /** In a process of its own, which can be killed; only `env` reaches it */
  process?: boolean
  env?: Record<string, string>
  config?: Partial<Omit<Config, 'limits'>> & { limits?: Partial<Config['limits']> }
  /** Between two pings of an event stream */
  pingMs?: number
  /** The YAML file */
  yaml?: string
  /** A log in place of the silent one; not for a process of its own */
  log?: Logger
}

/** Runs the tests on every backend, each in a world of its own. */
export async function everyBackend(
  t: Test,
  tests: (t: Test, world: World) => Promise<void>,
  options: WorldOptions = {},
): Promise<void> {
  await t.test('embedded store, bus in memory', async (t) =>
    tests(t, await openWorld(t, 'embedded', options)),
  )
  await t.test('PostgreSQL, bus in Redis', ON_SERVERS, async (t) =>
    tests(t, await openWorld(t, 'servers', options)),
  )
}

export async function openWorld(t: Test, backend: Backend, options: WorldOptions = {}): Promise<World> {
  const folder = scratch(t)
  const emulators = await startVendors()
  t.teardown(() => closeVendors(emulators))
  const env = {
    BATON_DATA_DIR: join(folder, 'data'),
    BATON_ENABLE_OAUTH: 'openai,anthropic,gemini',
    BATON_DRAIN_SECONDS: '0',
    // A gateway that shares a slow machine, or its very event loop, with its test is late for no fault of its own.
    BATON__LIMITS__OVERLOAD_DELAY: 'PT1H',
    ...rootsOf(emulators),
    ...(backend === 'servers' ? await servers(t) : {}),
    ...options.env,
  }
  if (options.yaml) writeFileSync(join(folder, 'baton.yaml'), options.yaml)
  const start = options.process ? () => inProcessOfItsOwn(t, folder, env) : inProcess(folder, env, options)
  return createWorld(t, backend, emulators, folder, start)
}

/** A gateway that listens. */
interface Gateway {
  url: string
  stop(signal?: NodeJS.Signals): Promise<void>
}

function inProcess(folder: string, env: Record<string, string>, options: WorldOptions) {
  const { config: loaded } = loadConfig(env, folder)
  const { config, pingMs, log = silent } = options
  const limits = { ...loaded.limits, ...config?.limits }
  return async (): Promise<Gateway> => {
    const app = await createApp({ ...loaded, ...config, limits }, { log, ...(pingMs ? { pingMs } : {}) })
    const url = await app.http.listen({ host: '127.0.0.1', port: 0 })
    return { url, stop: () => app.close() }
  }
}

async function inProcessOfItsOwn(t: Test, folder: string, env: Record<string, string>): Promise<Gateway> {
  const hear = process.env.E2E_LOG ? console.error : undefined
  const { url, code, stderr, stop } = await gatewayProcess(
    t,
    folder,
    { BATON_LOG_LEVEL: 'info', ...env },
    hear,
  )
  if (url === null) throw new Error(`the gateway ended with ${code} before it was ready: ${stderr}`)
  return {
    url,
    async stop(signal = 'SIGTERM') {
      const ended = stop(signal)
      // As under npm, which passes on a signal that the whole group got: the gateway hears it twice.
      await Promise.race([ended, sleep(20)])
      await stop(signal)
    },
  }
}

/** E2E_LOG=debug shows what the gateway says. */
const silent = pino({ level: process.env.E2E_LOG ?? 'silent' }, pino.destination(2))

const servers = async (t: Test): Promise<Record<string, string>> => ({
  ...(await onServer(t)),
  REDIS_URL: SERVERS.REDIS_URL,
})

async function createWorld(
  t: Test,
  backend: Backend,
  emulators: Vendors,
  folder: string,
  start: () => Promise<Gateway>,
): Promise<World> {
  let gateway = await start()
  t.teardown(() => gateway.stop())
  const credentials = {} as World['credentials']
  const world: World = {
    backend,
    api: createClient(gateway.url),
    emulators,
    credentials,
    async session(path, more = {}) {
      const body = { ...PATHS[path], credential_id: credentials[path], ...more }
      return (await world.api.post('/v1/sessions', body)).id
    },
    async tools(name, tools) {
      // The first connection loads this code: on a busy machine for longer than a bind waits for its server.
      await import('../../src/mcp/connection.ts')
      const server = await startToolServer(tools)
      t.teardown(() => server.close())
      const body = { name, transport: 'streamable_http', url: server.url }
      const { id } = await world.api.post('/v1/connectors', body)
      return { ...server, id }
    },
    script(play) {
      for (const emulator of Object.values(emulators)) emulator.script(play)
    },
    sent: (path) => requestsOf(emulators, path),
    async restart(signal) {
      await gateway.stop(signal)
      gateway = await start()
      world.api = createClient(gateway.url)
    },
    stop: () => gateway.stop(),
    async another() {
      const other = await start()
      t.teardown(() => other.stop())
      return createClient(other.url)
    },
    folder,
    get: (session) => world.api.get(`/v1/sessions/${session}`),
    messages: async (session) => (await world.api.get(`/v1/sessions/${session}/messages?limit=1000`)).data,
    run: (session, input) =>
      world.api.post(`/v1/sessions/${session}/turns`, {
        ...(typeof input === 'string' ? { input } : input),
        stream: false,
      }),
  }
  for (const path of PATH_NAMES) {
    const body = { ...CREDENTIALS[path], name: path, default: CREDENTIALS[path].kind === 'api_key' }
    credentials[path] = (await world.api.post('/v1/credentials', body)).id
  }
  return world
}

/** The vendor of each path, and what tells the path's requests apart. */
const DOORS: Record<Path, { vendor: keyof Vendors; is(request: Recorded): boolean }> = {
  'openai key': { vendor: 'openai', is: ({ path }) => path.startsWith('/v1/responses') },
  'chatgpt login': { vendor: 'openai', is: ({ path }) => path.startsWith('/backend-api/codex/responses') },
  'anthropic key': {
    vendor: 'anthropic',
    is: ({ path, headers }) => path.startsWith('/v1/messages') && 'x-api-key' in headers,
  },
  'anthropic bearer': {
    vendor: 'anthropic',
    is: ({ path, headers }) => path.startsWith('/v1/messages') && 'authorization' in headers,
  },
  'gemini key': {
    vendor: 'gemini',
    is: ({ path }) => path.startsWith('/v1beta') && path.includes('enerateContent'),
  },
  'code assist login': {
    vendor: 'gemini',
    is: ({ path }) => path.startsWith('/v1internal') && path.includes('enerateContent'),
  },
}

const requestsOf = (emulators: Vendors, path: Path): Recorded[] =>
  emulators[DOORS[path].vendor].requests.filter(DOORS[path].is)

/** Names of the tools that a request declares, in order, whatever the vendor. */
export function declaredIn({ body }: Recorded): string[] {
  const whole = body as Json
  const request = whole.request ?? whole
  const tools: Json[] = request.tools ?? []
  return tools.flatMap((tool) => {
    const group: Json[] = tool.functionDeclarations ?? tool.function_declarations ?? [tool]
    return group.map(({ name }) => {
      if (typeof name === 'string') return name
      throw new Error(`declaredIn of the harness finds no name in ${JSON.stringify(tool)}`)
    })
  })
}

/** The input of a Responses request in words: texts, <call>, =result. */
export const wordsOf = ({ input }: Json): string[] =>
  input.flatMap((item: Json) => {
    if (item.type === 'function_call') return [`<${item.name.replace(/^.*__/, '')}>`]
    if (item.type === 'function_call_output')
      return [`=${typeof item.output === 'string' ? item.output : item.output.map(({ text }: Json) => text)}`]
    if (item.type !== 'message' && item.role === undefined) return []
    return [
      typeof item.content === 'string' ? item.content : item.content.map(({ text }: Json) => text).join(''),
    ]
  })

let serial = 0
/** A tool server and its connector under a name that no other test uses. */
export const fresh = async (world: World, tools: Record<string, TestTool>) => {
  const name = `srv${++serial}`
  return { name, server: await world.tools(name, tools) }
}
