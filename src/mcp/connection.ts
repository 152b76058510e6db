/**
 * One standing connection to one server: its tool list, calls, the channel for its notifications.
 * Everything that the SDK throws leaves here as an McpError. Knows nothing of pools, retries or caches.
 */
import { type Client, ProtocolErrorCode, parseJSONRPCMessage } from '@modelcontextprotocol/client'
import { oneLine } from '../text.ts'
import { within } from '../within.ts'
import { type ChannelEnd, readGetStream } from './channel.ts'
import {
  McpError,
  type McpProgress,
  type McpServerInfo,
  type McpServerSpec,
  type McpTool,
} from './contract.ts'
import { createExchange, type Exchange, either, exchanges, inExchange } from './exchange.ts'
import { toMcpError } from './failure.ts'
import { isForgotten, isOfOlderRevision } from './forgotten.ts'
import { createMcpFetch } from './http.ts'
import { type RepairedTools, repairTools } from './repair.ts'
import { scrubbedFailure } from './scrub.ts'
import { type ConnectionContext, explain, negotiate, PARCEL, type Verdict, type Wire } from './wire.ts'

/** One call of one tool. */
interface CallRequest {
  name: string
  /** Its schema says which arguments are mirrored into headers (MCP 2026-07-28) */
  tool: McpTool | undefined
  args: Record<string, unknown>
  timeoutMs: number
  signal: AbortSignal
  onProgress(progress: McpProgress): void
}

/** A tool list as it was read, over all pages. */
export interface ListedTools extends RepairedTools {
  /** Milliseconds that the list holds, as its server says (2026-07-28); never 0, which servers' SDKs put there unasked */
  ttlMs?: number
}

/** A server that is connected, until its context hears `onClose`. */
export interface Connection {
  readonly server: McpServerInfo
  readonly verdict: Verdict
  list(options: { timeoutMs: number; signal: AbortSignal }): Promise<ListedTools>
  /** The raw result, for content.ts. Rejects with McpError, as `list` does. */
  call(request: CallRequest): Promise<unknown>
  /**
   * Whether a request failed with this because the server forgot the session, or no longer speaks the revision that
   * was remembered: it was not run, and a new connection helps.
   */
  isStale(failure: unknown): boolean
  /** Listens for notifications until the channel ends; stdio and SSE deliver them anyway. */
  listen(signal: AbortSignal, previous: ChannelEnd, onOpen: () => void): Promise<ChannelEnd>
  close(): Promise<void>
}

const END_SESSION_MS = 1_000
const STREAM_END_MS = 2_000

/** Connects within `ms`. With a `verdict` there is no probe. Rejects with an McpError whose `sent` is false. */
export async function openConnection(
  spec: McpServerSpec,
  context: ConnectionContext,
  verdict: Verdict | null,
  ms: number,
): Promise<Connection> {
  try {
    const wire = await negotiate(spec, context, verdict, ms)
    // The transport may have gone in the moment after the handshake.
    if (!wire.client.transport)
      throw new McpError('disconnected', `${spec.name} closed the connection at once.`, { sent: false })
    wire.client.onclose = () => context.onClose()
    return createConnection(spec, context, wire, verdict !== null)
  } catch (error) {
    const failure = fitForAll(toMcpError(error, spec), spec, context)
    // The server cannot have run anything before it was connected.
    throw failure.but({ kind: failure.kind === 'disconnected' ? 'unavailable' : failure.kind, sent: false })
  }
}

/** The failure without secrets; the last words of a configured server's process are for the operator. */
function fitForAll(failure: McpError, spec: McpServerSpec, { onLastWords }: ConnectionContext): McpError {
  const clean = scrubbedFailure(failure, spec)
  if (clean.lastWords) onLastWords?.(spec.name, clean.lastWords)
  return clean
}

function createConnection(
  spec: McpServerSpec,
  context: ConnectionContext,
  wire: Wire,
  isRemembered: boolean,
): Connection {
  const { client } = wire
  const version = client.getServerVersion()
  const server: McpServerInfo = {
    name: oneLine(version?.name || spec.name),
    version: oneLine(version?.version ?? ''),
    protocol_version: client.getNegotiatedProtocolVersion() ?? '',
  }
  const discover = client.getProtocolEra() === 'modern' ? client.getDiscoverResult() : undefined
  let isProven = !isRemembered
  const stale = new WeakSet<McpError>()

  /** Runs one request in an exchange of its own, and turns thrown errors into ours. */
  const request = async <T>(signal: AbortSignal, run: (signal: AbortSignal) => Promise<T>): Promise<T> => {
    const exchange = createExchange()
    try {
      const result = await inExchange(exchange, () => run(either(signal, exchange.signal)))
      isProven = true
      // The stream of an answered request ends by itself, or is ended: it must not hold a socket.
      setTimeout(exchange.abort, STREAM_END_MS).unref()
      return result
    } catch (error) {
      exchange.abort()
      const told = toMcpError(exchange.failure ?? error, spec, exchange)
      const known = unlessSent(told, exchange, spec)
      const failure = fitForAll(explain(known, wire, spec), spec, context)
      if (isForgotten({ error, failure, exchange, over: wire, isProven })) stale.add(failure)
      throw failure
    }
  }

  return {
    server,
    verdict: discover ? { kind: 'modern', discover } : { kind: 'legacy' },
    list: ({ timeoutMs, signal }) => request(signal, (aborted) => listTools(wire, spec, timeoutMs, aborted)),
    isStale: (failure) => failure instanceof McpError && stale.has(failure),
    call: (call) => request(call.signal, (aborted) => callTool(client, call, aborted)),
    // Outside of any call's exchange: work that a call's announcement starts would run in that exchange, and end with
    // it.
    listen: (signal, previous, onOpen) =>
      exchanges.exit(() =>
        discover
          ? listenModern(client, spec, signal, onOpen)
          : listenLegacy(spec, context, wire, { signal, previous, onOpen }),
      ),
    async close() {
      // A client ends its legacy session (2025-11-25, "Session Management"); not all servers answer.
      if (wire.http?.sessionId)
        await within(
          END_SESSION_MS,
          wire.http.terminateSession().catch(() => {}),
        )
      await client.close()
    },
  }
}

/** The failure of a request that still waited for its token, or for the end of a rate limit, was not sent. */
function unlessSent(failure: McpError, { request }: Exchange, { name }: McpServerSpec): McpError {
  if (request === 'limited') return failure.but({ sent: false })
  if (request !== 'held') return failure
  const isLate = failure.kind === 'timeout'
  return failure.but({
    sent: false,
    ...(isLate && { message: `${name}: its login was not renewed in time` }),
  })
}

async function callTool(client: Client, call: CallRequest, signal: AbortSignal): Promise<unknown> {
  const { name, tool, onProgress } = call
  const result = await client.callTool(
    { name, arguments: call.args },
    {
      // The signal limits the whole call: the SDK's own limit for that uses a clock that may be set.
      timeout: call.timeoutMs,
      resetTimeoutOnProgress: true,
      signal,
      onprogress: ({ progress, total, message }) =>
        onProgress({
          progress,
          ...(total !== undefined && { total }),
          ...(message !== undefined && { message }),
        }),
      // The SDK gets no output schema, neither here nor in the lists (pages.ts): a stranger's may take seconds to compile,
      // and a result that does not fit would be thrown away, though the tool has run.
      toolDefinition: { name, inputSchema: { ...tool?.inputSchema, type: 'object' } },
    },
  )
  return result._meta?.[PARCEL]
}

async function listTools(
  wire: Wire,
  spec: McpServerSpec,
  timeout: number,
  signal: AbortSignal,
): Promise<ListedTools> {
  const { client } = wire
  const declared = client.getServerCapabilities()?.tools
  // The SDK would answer the same, but write to stdout.
  if (!declared) return { tools: [], left_out: [] }
  const asking = client.listTools(undefined, { timeout, signal, cacheMode: 'refresh' })
  const listed = await asking.catch((error) => {
    // Of a server that declared nothing (greeting.ts), that means what it seems to say.
    if (declared.listChanged === undefined && isUnknownMethod(error, spec)) return { tools: [] }
    throw error
  })
  const { entries, ttlMs } = wire.pages.take()
  const { tools, left_out } = repairTools(entries)
  const accepted = new Set(listed.tools.map(({ name }) => name))
  // Clients MUST leave such tools out (MCP 2026-07-28, Streamable HTTP); the SDK has done so.
  const excluded = tools.filter(({ name }) => !accepted.has(name))
  return {
    tools: tools.filter(({ name }) => accepted.has(name)),
    left_out: [
      ...left_out,
      ...excluded.map(({ name }) => ({
        tool: name,
        problem: 'left out: its x-mcp-header declarations are invalid',
      })),
    ],
    ...(ttlMs > 0 && { ttlMs }),
  }
}

const isUnknownMethod = (error: unknown, spec: McpServerSpec): boolean =>
  toMcpError(error, spec).rpcCode === ProtocolErrorCode.MethodNotFound

const announcesChanges = (client: Client): boolean =>
  client.getServerCapabilities()?.tools?.listChanged === true

/** `subscriptions/listen` (2026-07-28). */
async function listenModern(
  client: Client,
  spec: McpServerSpec,
  signal: AbortSignal,
  onOpen: () => void,
): Promise<ChannelEnd> {
  if (!announcesChanges(client)) return { isUnsupported: true }
  const opening = client.listen({ toolsListChanged: true }, { timeout: 10_000, signal })
  const subscription = await opening.catch((error) => {
    // FastMCP's servers declare announcements, and did not know this until September 2026 (fastmcp#4995). And this server
    // may have made way for one that speaks only older revisions, as after a deploy that was taken back.
    if (isUnknownMethod(error, spec) || isOfOlderRevision(error)) return null
    throw error
  })
  if (!subscription) return { isUnsupported: true }
  onOpen()
  const stop = (): void => void subscription.close().catch(() => {})
  signal.addEventListener('abort', stop, { once: true })
  await subscription.closed
  signal.removeEventListener('abort', stop)
  return {}
}

/** The GET stream of 2025-11-25 and earlier; stdio and SSE have notifications on the connection itself. */
async function listenLegacy(
  spec: McpServerSpec,
  context: ConnectionContext,
  wire: Wire,
  { signal, previous, onOpen }: { signal: AbortSignal; previous: ChannelEnd; onOpen: () => void },
): Promise<ChannelEnd> {
  const { client, http, tap } = wire
  // A server's questions may come on this stream, too.
  const isOfUse = announcesChanges(client) || context.elicit !== undefined
  if (!http || !isOfUse) return { isUnsupported: true }
  const headers = new Headers(spec.headers)
  const token = await spec.auth?.token()
  if (token) headers.set('authorization', `Bearer ${token}`)
  if (http.sessionId) headers.set('mcp-session-id', http.sessionId)
  if (http.protocolVersion) headers.set('mcp-protocol-version', http.protocolVersion)
  const onMessage = (message: unknown): void => tap.deliver(parseJSONRPCMessage(message))
  const fetch = createMcpFetch({ ...context, keepsGetStream: true })
  const options = {
    fetch,
    url: spec.url ?? '',
    headers,
    onOpen() {
      wire.hasChannel = true
      onOpen()
    },
    onMessage,
  }
  const end = await readGetStream(options, signal, previous).finally(() => {
    wire.hasChannel = false
  })
  // The next opening has the new token. If that is refused, too, renewing is no cure.
  if (end.isUnauthorized && !previous.isUnauthorized) await spec.auth?.onUnauthorized?.(token)
  return end
}
