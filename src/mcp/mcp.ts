/**
 * The one door to MCP servers: connections, tool lists, calls. Nothing outside src/mcp/ names the SDK. From here
 * inwards: server.ts (one key: its list, its calls; deadline.ts: how long their callers wait), link.ts (its
 * connections over time; health.ts: its failures), connection.ts (one connection; forgotten.ts: when another one
 * helps), wire.ts (how it is made), tap.ts (each message; questions.ts: the server's own requests), and transport.ts
 * with http.ts or stdio.ts (the bytes). A process gets its variables from child-env.ts and its walls from sandbox.ts,
 * is read by lines.ts, and dies with the gateway by watchdog.ts. exchange.ts says to all of these whose request they
 * see.
 * On the way back, what a server says is made fit for the SDK: a message by answer.ts (in an event stream by
 * stream.ts), what the server is by greeting.ts, a list of tools by pages.ts and repair.ts. content.ts reads results,
 * failure.ts failures, and scrub.ts takes secrets out of all that. listing.ts keeps the list, channel.ts hears that it
 * has changed, and announcer.ts tells it. contract.ts is what all others see. Logins are apart: oauth.ts.
 */
import { BoundedMap } from '../bounded-map.ts'
import { once } from '../chat/once.ts'
import type { ConnectorProxy } from '../guard/dial.ts'
import { createGuards, DEFAULT_MAX_BYTES } from '../guard.ts'
import type { Resolve } from '../resolve.ts'
import { createAnnouncer } from './announcer.ts'
import {
  ATTEMPT_MS,
  CONNECT_MS,
  type ElicitHandler,
  type Mcp,
  McpError,
  type McpServerSpec,
  type ToolList,
} from './contract.ts'
import type { Sandbox } from './sandbox.ts'
import { createServer, type Server, type ServerOptions } from './server.ts'
import { createWatchdog } from './watchdog.ts'

export interface McpOptions {
  /** Most stdio servers running at once. Default 32 */
  maxProcesses?: number
  /** Default CONNECT_MS */
  connectMs?: { http: number; stdio: number }
  /** Default ATTEMPT_MS */
  attemptMs?: number
  /** A connection that nobody uses is closed after this time. Default 10 min over HTTP, 5 min for a process */
  idleMs?: { http: number; stdio: number }
  /** How long `close` waits for running calls. Default 10 s */
  drainMs?: number
  /** Most bytes of one answer. Default 8 MiB */
  maxBytes?: number
  /** Most characters of all kept tool lists together. Default 128 Mi */
  mostListed?: number
  /** At most one announcement of a changed list per key in this time. Default 5 s */
  announceMs?: number
  /** Whether servers of callers may be programs; those of the configuration always may. Default true */
  allowStdio?: boolean
  /** The sandbox that stdio servers run in (sandbox.ts). Default: none */
  sandbox?: Sandbox | null
  /** Answers what servers ask the user for; without it, elicitation is not declared. */
  elicit?: ElicitHandler
  /** Hears what a configured server's process said last; nobody else is told */
  onLastWords?: (server: string, words: string) => void
  /** The proxy through which servers are reached over https */
  proxy?: ConnectorProxy | null
  /** Stands in for the system's resolver in tests */
  resolve?: Resolve
}

/** Beyond this many keys, those that hold no connection are forgotten, the oldest first. */
const MAX_SERVERS = 1_000

/** Most characters of JSON, all kept lists together: each may have MAX_LIST_BYTES (repair.ts). */
const MOST_LISTED = 128 << 20
const sizeOf = once((list: ToolList): number => JSON.stringify(list).length)

/** The door to MCP servers; nothing is connected before it is asked for. */
export function createMcp(options: McpOptions): Mcp {
  const { connectMs = CONNECT_MS, idleMs = { http: 600_000, stdio: 300_000 } } = options
  const { maxProcesses = 32, maxBytes = DEFAULT_MAX_BYTES } = options
  const servers = new Map<string, Server>()
  const lists = new BoundedMap<ToolList>(options.mostListed ?? MOST_LISTED, sizeOf)
  // Deadlines belong to the calls and the cap to http.ts, which knows whose answer it cuts. Many users of one server
  // share an origin, each with a stream of its own: none may starve the others.
  const guards = createGuards({
    maxBytes: Number.POSITIVE_INFINITY,
    timeoutMs: 0,
    connections: 1_024,
    proxy: options.proxy ?? null,
    ...(options.resolve && { resolve: options.resolve }),
  })
  const watchdog = createWatchdog()
  const announcer = createAnnouncer(options.announceMs ?? 5_000)
  let isClosed = false

  /** Makes room for one more process, or refuses: a process that is in use is never ended. */
  const makeRoom = ({ name }: McpServerSpec): void => {
    const links = [...servers.values()].map(({ link }) => link).filter((link) => link.processes() > 0)
    if (links.reduce((sum, link) => sum + link.processes(), 0) < maxProcesses) return
    const [oldest] = links.filter((link) => link.isIdle()).sort((a, b) => a.lastUsed - b.lastUsed)
    if (oldest) return oldest.rest()
    const words = `${name} cannot be started: ${maxProcesses} server processes are busy.`
    throw new McpError('unavailable', words, { sent: false, retryAfterMs: 5_000 })
  }

  const optionsFor = (spec: McpServerSpec): ServerOptions => {
    const isStdio = spec.transport === 'stdio'
    const kind = isStdio ? 'stdio' : 'http'
    return {
      settings: {
        fetch: guards.of({ allowPrivate: spec.allowPrivate }).fetch,
        maxBytes,
        watchdog,
        allowStdio: options.allowStdio ?? true,
        sandbox: options.sandbox ?? null,
        elicit: options.elicit,
        onLastWords: options.onLastWords,
      },
      isStdio,
      admit() {
        if (isStdio) makeRoom(spec)
      },
      onListChanged: () => announcer.announce(spec.key),
      connectMs: connectMs[kind],
      attemptMs: options.attemptMs ?? ATTEMPT_MS,
      idleMs: idleMs[kind],
      drainMs: options.drainMs ?? 10_000,
    }
  }

  const forgetOldest = (): void => {
    const unused = [...servers].filter(([, { link }]) => link.isIdle() && !link.isConnected())
    const [oldest] = unused.sort(([, a], [, b]) => a.link.lastUsed - b.link.lastUsed)
    if (!oldest) return
    servers.delete(oldest[0])
    lists.drop(oldest[0])
  }

  const serverFor = (spec: McpServerSpec): Server => {
    if (isClosed) throw new McpError('unavailable', 'The gateway is shutting down.', { sent: false })
    const known = servers.get(spec.key)
    if (known) return known
    if (servers.size >= MAX_SERVERS) forgetOldest()
    const { key } = spec
    const server = createServer(optionsFor(spec), {
      get: () => lists.get(key) ?? null,
      put: (list) => lists.put(key, list),
    })
    servers.set(key, server)
    return server
  }

  return {
    list: async (spec, listOptions) => serverFor(spec).list(spec, listOptions),
    call: async (spec, tool, args, callOptions) => serverFor(spec).call(spec, tool, args, callOptions),
    cached: (key) => servers.get(key)?.cached() ?? null,
    isOutdated: (key) => servers.get(key)?.isOutdated() ?? false,
    status: (key) => servers.get(key)?.status() ?? { state: 'idle' },
    onListChanged: announcer.subscribe,
    interest(spec, forMs) {
      if (!isClosed) serverFor(spec).link.interest(forMs)
    },
    release: (key) => servers.get(key)?.link.release(),
    async close() {
      isClosed = true
      announcer.stop()
      await Promise.all([...servers.values()].map(({ link }) => link.close()))
      servers.clear()
      await guards.close()
      watchdog.stop()
    },
  }
}
