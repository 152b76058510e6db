/** One server as the pool holds it: the way to it, its tool list, calls of its tools. */
import type { Connection } from './connection.ts'
import { readResult } from './content.ts'
import { type Mcp, McpError, type McpStatus, type ToolList } from './contract.ts'
import { createDeadline } from './deadline.ts'
import { Link, type LinkOptions } from './link.ts'
import { createListing, type KeptList } from './listing.ts'
import { unquoted, unquotedList, unquotedProgress } from './scrub.ts'

/** The verbs of Mcp for one key; they throw McpError alike. */
export interface Server {
  readonly link: Link
  list: Mcp['list']
  call: Mcp['call']
  cached(): ToolList | null
  isOutdated(): boolean
  status(): McpStatus
}

/** MCP 2026-07-28: arguments were mirrored into headers by an outdated schema. */
const HEADER_MISMATCH = -32020

/** A server that connects with its first list or call. */
export function createServer(options: LinkOptions, kept: KeptList): Server {
  const link = new Link({
    ...options,
    onListChanged() {
      listing.markChanged()
      if (!listing.isQuarantined()) options.onListChanged()
    },
  })
  const listing = createListing(async (spec) => {
    const from = performance.now()
    const wasConnected = link.isConnected()
    try {
      const listed = await link.use(
        spec,
        (connecting) => connecting,
        async (connection) => ({
          ...(await connection.list({ timeoutMs: link.health.patienceMs(), signal: link.ending })),
          server: connection.server,
        }),
      )
      link.health.succeeded()
      // A list over a connection that stands says nothing of how long the next one takes to be made.
      if (!wasConnected) link.health.took(performance.now() - from)
      return spec.isConfigured ? unquotedList(listed, spec) : listed
    } catch (error) {
      if (error instanceof McpError && link.isConnected()) link.failed(error, 'attempt')
      throw error
    }
  }, kept)

  return {
    link,
    async list(spec, { timeoutMs, refresh = false, insists = false }) {
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
      // An owner may read their own; the configuration's are the operator's.
      const told: typeof onProgress = spec.isConfigured
        ? (progress) => onProgress?.(unquotedProgress(progress, spec))
        : onProgress
      /** The list, without which the call is not sent */
      const read = (refresh: boolean): Promise<ToolList> =>
        listing.get(spec, refresh).catch((error) => {
          throw error instanceof McpError ? error.but({ sent: false }) : error
        })
      const send = async (connection: Connection): Promise<unknown> => {
        // A modern server's arguments are mirrored by the tool's schema. A list that is old will do: it says so if not.
        if (connection.verdict.kind === 'modern' && !listing.cached()) await deadline.race(read(false))
        const definition = listing.cached()?.tools.find(({ name }) => name === tool)
        deadline.markSent()
        return connection.call({ name: tool, tool: definition, args, timeoutMs, signal, onProgress: told })
      }
      try {
        const raw = await link.use(spec, wait, send).catch(async (error) => {
          if (!(error instanceof McpError) || error.rpcCode !== HEADER_MISMATCH) throw error
          await deadline.race(read(true))
          return link.use(spec, wait, send)
        })
        link.health.succeeded()
        const result = readResult(raw)
        return spec.isConfigured ? unquoted(result, spec) : result
      } catch (error) {
        const failure = deadline.failure() ?? error
        if (failure instanceof McpError && link.isConnected()) link.failed(failure, 'call')
        throw failure
      } finally {
        deadline.clear()
      }
    },
    status: () => (listing.isQuarantined() ? { ...link.status(), state: 'quarantined' } : link.status()),
  }
}
