/**
 * What a run needs: a PostgreSQL and a Redis, three gateway processes on them, and in this process the
 * emulated providers and an MCP server that keeps a record of every call.
 */
import { randomBytes } from 'node:crypto'
import { mkdirSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { startToolServer, type TestTool, type ToolServer, textResult } from '../../test/e2e/tool-server.ts'
import type { Recorded } from '../../test/emulators/http.ts'
import { closeVendors, rootsOf, startVendors } from '../../test/emulators/vendors.ts'
import { freePort, type RunningServer, startPostgres, startRedis } from '../../test/servers.ts'
import { createReplica, type Replica } from './replica.ts'

export const MODELS = [
  { provider: 'openai', model: 'gpt-5.6-sol' },
  { provider: 'anthropic', model: 'claude-opus-5-5' },
  { provider: 'gemini', model: 'gemini-3.8-flash' },
] as const

export interface World {
  replicas: Replica[]
  database: pg.Pool
  tools: ToolServer
  servers: { postgres: RunningServer; redis: RunningServer }
  /** Requests that a provider answered with an error */
  refused(): Recorded[]
  requests(): number
  /** The newest model request in which these words stand */
  requestWith(words: string): Recorded | undefined
  /** Lets go of the requests that were answered well, so that a long run does not fill the driver's memory. */
  forget(): void
  close(): Promise<void>
}

interface WorldOptions {
  replicas?: number
  /** Whether PostgreSQL syncs to the disk; default true */
  durable?: boolean
  /** A folder for the replicas' logs, made where there is none */
  logs?: string | null
}

export const LEASE_SECONDS = 2

export async function openWorld(options: WorldOptions = {}): Promise<World> {
  const { replicas: count = 3, durable = true, logs = null } = options
  const closers: (() => Promise<unknown>)[] = []
  const close = async () => {
    for (const one of closers.splice(0).reverse()) await one()
  }
  try {
    if (logs !== null) mkdirSync(logs, { recursive: true })
    const servers = await startServers(durable, closers)
    const vendors = await startVendors()
    const tools = await startToolServer(TOOLS)
    closers.push(() => closeVendors(vendors), tools.close)
    const database = new pg.Pool({ connectionString: servers.postgres.url, max: 4 })
    database.on('error', () => {})
    closers.push(() => database.end())
    const replicaEnv = {
      DATABASE_URL: servers.postgres.url,
      REDIS_URL: servers.redis.url,
      BATON_LEASE_SECONDS: String(LEASE_SECONDS),
      BATON_ENCRYPTION_KEYS: `k1:${randomBytes(32).toString('base64')}`,
      BATON_LOG_LEVEL: logs === null ? 'error' : 'info',
      ...rootsOf(vendors),
      OPENAI_API_KEY: 'sk-chaos',
      ANTHROPIC_API_KEY: 'sk-ant-api03-chaos',
      GEMINI_API_KEY: 'chaos',
    }
    const replicas: Replica[] = []
    for (let i = 0; i < count; i++) {
      replicas.push(createReplica(`replica-${i}`, await freePort(), replicaEnv, logs))
    }
    closers.push(() => Promise.all(replicas.map(stopReplica)))
    // The first replica migrates; the others would only wait for it.
    await replicas[0]?.start()
    await Promise.all(replicas.slice(1).map((replica) => replica.start()))
    const emulators: { requests: Recorded[] }[] = Object.values(vendors)
    const everything = () => emulators.flatMap(({ requests }) => requests)
    let forgotten = 0
    const world: World = {
      replicas,
      database,
      tools,
      servers,
      refused: () => everything().filter(({ status = 0 }) => status >= 400),
      requests: () => everything().length + forgotten,
      requestWith: (words) => everything().findLast(({ text }) => text.includes(words)),
      forget() {
        for (const { requests } of emulators) {
          const kept = requests.filter(({ status }) => status === undefined || status >= 400)
          forgotten += requests.length - kept.length
          requests.splice(0, requests.length, ...kept)
        }
      },
      close,
    }
    await request(world, 'POST', '/v1/connectors', {
      name: 'kit',
      trust_annotations: true,
      transport: 'streamable_http',
      url: tools.url,
    })
    return world
  } catch (failure) {
    await close()
    throw failure
  }
}

/** Where the replica of this number is; numbers go round. */
export const urlOf = ({ replicas }: Pick<World, 'replicas'>, i: number): string =>
  replicas[i % replicas.length]?.url ?? ''

/** A run that is told to stop ends its processes, as a run that fails does. */
export function endOnSignals(): void {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(1))
}

async function stopReplica(replica: Replica): Promise<void> {
  replica.signal('SIGCONT')
  await replica.end('SIGKILL')
}

async function startServers(durable: boolean, closers: (() => Promise<unknown>)[]) {
  const postgres = await startPostgres({ durable })
  closers.push(postgres.stop)
  const redis = await startRedis()
  closers.push(redis.stop)
  return { postgres, redis }
}

/** `charge` must never run twice for one call; `look` may. */
const TOOLS: Record<string, TestTool> = {
  charge: tool('Takes money', {}),
  look: tool('Only looks', { readOnlyHint: true }),
  spare: tool('Comes and goes', { readOnlyHint: true }),
}

function tool(description: string, annotations: Record<string, unknown>): TestTool {
  return {
    description,
    annotations,
    inputSchema: {
      type: 'object',
      properties: { id: { type: 'string' }, ms: { type: 'number' } },
      required: ['id', 'ms'],
    },
    async run({ args }) {
      // A call whose caller died must not hold the process that counts it.
      await sleep(Number(args.ms), undefined, { ref: false })
      return textResult(`did ${String(args.id)}`)
    },
  }
}

export interface Reply {
  status: number
  body: Record<string, unknown>
  /** The header Retry-After */
  retryAfter: string | null
}

const ANSWER_MS = 60_000

/** A request that is made again, at another replica, until one answers it with something final. */
export async function request(
  world: Pick<World, 'replicas'>,
  method: string,
  path: string,
  body?: unknown,
  { first = 0, headers = {} }: { first?: number; headers?: Record<string, string> } = {},
): Promise<Reply> {
  const until = Date.now() + ANSWER_MS
  for (let tries = 0; ; tries++) {
    const reply = await once(urlOf(world, first + tries) + path, method, body, headers).catch(() => null)
    if (reply && reply.status < 500) return reply
    if (Date.now() > until)
      throw new Error(
        `${method} ${path}: no replica answered: ${reply?.status} ${JSON.stringify(reply?.body)}`,
      )
    await sleep(50)
  }
}

export async function once(
  url: string,
  method: string,
  body: unknown,
  headers: Record<string, string>,
): Promise<Reply> {
  const response = await fetch(url, {
    method,
    headers: { ...(body === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    signal: AbortSignal.timeout(30_000),
  })
  const text = await response.text()
  return {
    status: response.status,
    body: text === '' ? {} : JSON.parse(text),
    retryAfter: response.headers.get('retry-after'),
  }
}
