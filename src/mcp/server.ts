/** One server as the pool holds it: its link, its tool list, calls of its tools. */
import type { Connection } from './connection.ts'
import { readResult } from './content.ts'
import {
  type Mcp,
  McpError,
  type McpProgress,
  type McpServerSpec,
  type McpStatus,
  type ToolList,
  waitOutMs,
} from './contract.ts'
import { createDeadline } from './deadline.ts'
import { Link, type LinkOptions } from './link.ts'
import { createListing, type KeptList } from './listing.ts'
import { scrubbedList, scrubbedProgress, scrubbedResult } from './scrub.ts'

/** The verbs of Mcp for one key; they throw McpError, too. */
export interface Server {
  readonly link: Link
  list: Mcp['list']
  call: Mcp['call']
  cached(): ToolList | null
  isOutdated(): boolean
  status(): McpStatus
}

/** `onListChanged` is also called if the list may have changed unheard, and if a call found the server away. */
export type ServerOptions = Omit<LinkOptions, 'onDoubt'>

/** MCP 2026-07-28: arguments were mirrored into headers by an outdated schema. */
const HEADER_MISMATCH = -32020

/** A server that connects with its first list or call. */
export function createServer(options: ServerOptions, kept: KeptList): Server {
  /** Who hears it asks for the list, and so finds what the server has and whether it is there. */
  const tell = (): void => {
    if (!listing.isQuarantined()) options.onListChanged()
  }
  const link = new Link({
    ...options,
    onListChanged() {
      listing.markChanged()
      tell()
    },
    onDoubt: tell,
  })
  /** Connections that the list was asked for over: behind another one, there may be another server by now */
  const listedOver = new WeakSet<Connection>()
  const listing = createListing((spec) => askedForList(link, spec, listedOver), kept)

  return {
    link,
    async list(spec, { timeoutMs = waitOutMs(spec), refresh = false, insists = false } = {}) {
      if (insists) link.health.skipPause()
      const deadline = createDeadline(spec.name, timeoutMs)
      return deadline.race(listing.get(spec, refresh)).finally(deadline.clear)
    },
    cached: listing.cached,
    isOutdated: listing.isOutdated,
    async call(spec, tool, args, { timeoutMs, maxTotalMs, signal: caller, onProgress }) {
      const deadline = createDeadline(spec.name, maxTotalMs, caller)
      const { signal } = deadline
      const wait = <T>(connecting: Promise<T>): Promise<T> => {
        const patience = createDeadline(spec.name, options.connectMs, signal)
        return patience.race(connecting).finally(patience.clear)
      }
      const read = (refresh: boolean) => deadline.race(listing.get(spec, refresh)).catch(unsent)
      const onCleanProgress = (progress: McpProgress) => onProgress?.(scrubbedProgress(progress, spec))
      const request = { name: tool, args, timeoutMs, signal, onProgress: onCleanProgress }
      const send = (connection: Connection) => {
        const known = listing.cached()?.tools.find(({ name }) => name === tool)
        deadline.markSent()
        return connection.call({ ...request, tool: known })
      }
      let used: Connection | null = null
      try {
        const raw = await link.use(spec, wait, async (connection) => {
          used = connection
          if (listing.cached() && !listedOver.has(connection)) tell()
          if (connection.verdict.kind !== 'modern') return send(connection)
          // It wants arguments in headers, too, as the tool's schema says. An old list will do: if not, it says so.
          if (!listing.cached()) await read(false)
          return send(connection).catch(async (error) => {
            if (!(error instanceof McpError) || error.rpcCode !== HEADER_MISMATCH) throw error
            await read(true)
            return send(connection)
          })
        })
        link.health.succeeded()
        return scrubbedResult(readResult(raw), spec)
      } catch (error) {
        const failure = failureOf(deadline.failure(), error)
        // A connection that was let go has a successor by now, and its failure says nothing about that.
        if (failure instanceof McpError && link.isHeld(used)) link.failed(forAll(failure, spec), 'call')
        if (mayMeanAway(failure, link.status())) tell()
        throw failure
      } finally {
        deadline.clear()
      }
    },
    status: () => (listing.isQuarantined() ? { ...link.status(), state: 'quarantined' } : link.status()),
  }
}

async function askedForList(link: Link, spec: McpServerSpec, listedOver: WeakSet<Connection>) {
  const from = performance.now()
  const wasConnected = link.isConnected()
  let used: Connection | null = null
  try {
    const listed = await link.use(
      spec,
      (connecting) => connecting,
      async (connection) => {
        used = connection
        const { server } = connection
        const timeoutMs = link.health.patienceMs()
        const listed = await connection.list({ timeoutMs, signal: link.ending })
        listedOver.add(connection)
        return { ...listed, server }
      },
    )
    link.health.succeeded()
    // A list over an open connection does not tell how long it takes to make one.
    if (!wasConnected) link.health.took(performance.now() - from)
    return scrubbedList(listed, spec)
  } catch (error) {
    // While we close, whatever the SDK throws, the server did nothing wrong.
    if (link.ending.aborted)
      throw new McpError('unavailable', `${spec.name} is being closed.`, { sent: false, cause: error })
    if (error instanceof McpError && link.isHeld(used)) link.failed(error, 'attempt')
    throw error
  }
}

/** Every owner reads a configured server's status, and a failure's words may quote the one owner's call. */
const forAll = (failure: McpError, { name, isConfigured }: McpServerSpec): McpError =>
  isConfigured ? failure.but({ message: `${name}: a call failed (${failure.kind}).` }) : failure

/** Whether a call may have failed because the server is away: the answer to the next list shows it. */
const mayMeanAway = (failure: unknown, { state }: McpStatus): boolean =>
  state === 'down' ||
  state === 'auth_required' ||
  // HTTP 5xx, as a proxy says it, over an open connection. A rate limit is not `sent`, and is no absence.
  (failure instanceof McpError && failure.kind === 'unavailable' && failure.sent)

/**
 * The failure of a call: the reason why the caller's patience ended, with what is known of whether the call had left by
 * then.
 */
function failureOf(ended: McpError | null, error: unknown): unknown {
  if (!ended) return error
  return error instanceof McpError && !error.sent ? ended.but({ sent: false }) : ended
}

/** Without the list that a call needs, the call is not sent. */
function unsent(error: unknown): never {
  throw error instanceof McpError ? error.but({ sent: false }) : error
}
