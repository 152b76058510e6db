/**
 * How a connection is made: the choice of protocol revision, and for each attempt a transport (transport.ts), the SDK's
 * client, and a tap between them. connection.ts uses the result.
 */
import {
  Client,
  type PriorDiscovery,
  ProtocolErrorCode,
  SdkError,
  SdkErrorCode,
  SdkHttpError,
  SseError,
  type VersionNegotiationOptions,
} from '@modelcontextprotocol/client'
import { isRecord } from '../chat/json.ts'
import { VERSION } from '../version.ts'
import { McpError, type McpServerSpec } from './contract.ts'
import { createExchange, type Exchange, inExchange } from './exchange.ts'
import { toMcpError } from './failure.ts'
import { repairDiscovery, repairGreeting } from './greeting.ts'
import { createPages, LAST_PAGE, type Pages } from './pages.ts'
import { type Tap, tap } from './tap.ts'
import { type ConnectionSettings, createTransport, type Transports } from './transport.ts'

/** Which revision a server speaks; kept by the caller so that a reconnect needs no probe. */
export type Verdict = PriorDiscovery

/** What one attempt is given, and what it reports to. */
export interface ConnectionContext extends ConnectionSettings {
  onListChanged(): void
  /** The transport is gone: process ended, stream cut, or closed by us */
  onClose(): void
  /** Takes a close that goes on after its caller has left; it may fail */
  closing(work: Promise<void>): void
  /** Aborts when nobody will need the connection any more: an attempt ends with it */
  ending: AbortSignal
}

/** A client that is connected, with the parts of its transport that it hides. */
export interface Wire extends Transports {
  client: Client
  tap: Tap
  /** The GET stream is open: servers with Ruby's SDK put all answers there meanwhile, until April 2026 (ruby-sdk#294) */
  hasChannel: boolean
  pages: Pages
}

const MODERN = '2026-07-28'
/** Under this key of a result's `_meta` the tap hands the result past the SDK's schemas. */
export const PARCEL = 'baton/result'

/** The probe's part of an attempt's time: some servers of 2025 never answer it, and are asked without it then. */
const PROBE_SHARE = 0.6

/** Connects within `ms`. With a `verdict` there is no probe. Rejects with McpError or an error of the SDK. */
export async function negotiate(
  spec: McpServerSpec,
  context: ConnectionContext,
  verdict: Verdict | null,
  ms: number,
): Promise<Wire> {
  const until = performance.now() + ms
  const attempt: MakeAttempt = (options) => openWire(spec, context, options, { ms, until })
  if (verdict) return attempt({ mode: 'legacy', prior: verdict })
  if (spec.transport === 'sse') return attempt({ mode: 'legacy' })
  return spec.transport === 'stdio' ? legacyFirst(spec, attempt) : probeFirst(spec, attempt, ms * PROBE_SHARE)
}

type MakeAttempt = (options: Negotiation) => Promise<Wire>

/** On stdio a probe would cost a second process (534 → 1385 ms), and most servers speak 2025-11-25. */
async function legacyFirst(spec: McpServerSpec, attempt: MakeAttempt): Promise<Wire> {
  try {
    return await attempt({ mode: 'legacy' })
  } catch (refused) {
    if (toMcpError(refused, spec).kind !== 'protocol') throw refused
    return attempt({ mode: { pin: MODERN } }).catch((error) => {
      // The server does not speak the new revision either: its refusal in the old one tells what is wrong.
      throw isEraFailure(error) ? refused : error
    })
  }
}

const isEraFailure = ({ cause }: Error): boolean =>
  cause instanceof SdkError && cause.code === SdkErrorCode.EraNegotiationFailed

/** Some 2025 servers choke on the unknown probe (HTTP 500, an HTML page, silence, 401) instead of refusing it. */
async function probeFirst(spec: McpServerSpec, attempt: MakeAttempt, probeMs: number): Promise<Wire> {
  try {
    return await attempt({ mode: 'auto', probeMs })
  } catch (error) {
    if (!(error instanceof ProbeFailedError)) throw error
    return afterProbe(spec, attempt, error.cause)
  }
}

/** `probed`: how the probe failed, which says nothing about the server's revision */
async function afterProbe(spec: McpServerSpec, attempt: MakeAttempt, probed: unknown): Promise<Wire> {
  try {
    return await attempt({ mode: 'legacy' })
  } catch (error) {
    const refused = toMcpError(error, spec)
    if (refused.kind !== 'protocol') throw error
    // The server speaks only the new protocol, and denied access to that.
    if (isDenial(probed)) throw toMcpError(probed, spec)
    if (!isSilence(probed)) throw error
    // It speaks only the new protocol, and was slow to say so: what was just started is awake by now. One that is slower
    // gets longer for its probe in the next attempt.
    return attempt({ mode: { pin: MODERN } }).catch(() => {
      const message = `${spec.name} did not say in time which protocol revisions it speaks.`
      throw refused.but({ kind: 'timeout', ...(refused.rpcCode === METHOD_NOT_FOUND && { message }) })
    })
  }
}

type Mode = 'auto' | 'legacy' | { pin: string }
type Negotiation = { mode: Mode; prior?: Verdict; probeMs?: number }

/** The server answered the probe with something that says nothing about its revision. */
class ProbeFailedError extends Error {
  override name = 'ProbeFailedError'
}

async function openWire(
  spec: McpServerSpec,
  context: ConnectionContext,
  { mode, prior, probeMs }: Negotiation,
  budget: { ms: number; until: number },
): Promise<Wire> {
  const left = Math.max(0, budget.until - performance.now())
  const wire = createWire(spec, context, { mode, ...(probeMs && { probe: { timeoutMs: probeMs } }) })
  const exchange = createExchange()
  const { signal } = exchange
  const giveUp = (kind: 'timeout' | 'unavailable', words: string): void => {
    exchange.failure ??= new McpError(kind, `${spec.name} ${words}`, { sent: false })
    exchange.abort()
  }
  const timer = setTimeout(() => giveUp('timeout', `did not connect in ${budget.ms} ms.`), left)
  const onEnding = (): void => giveUp('unavailable', 'is being closed.')
  // A transport's `start` may hang without looking at any signal (SSE).
  const abandoned = new Promise<never>((_resolve, reject) => {
    signal.addEventListener('abort', () => reject(exchange.failure), { once: true })
  })
  if (context.ending.aborted) onEnding()
  else context.ending.addEventListener('abort', onEnding, { once: true })
  try {
    const connect = () =>
      wire.client.connect(wire.transport, { timeout: left, signal, ...(prior && { prior }) })
    // After an abort nothing is started: a process would be let go before it could be ended.
    // The exchange ends with the wait: while one lasts, every promise pays for it (exchange.ts).
    await inExchange(exchange, () => Promise.race([signal.aborted ? abandoned : connect(), abandoned]))
    return wire
  } catch (error) {
    exchange.abort()
    context.closing(wire.transport.close())
    if (probeMs !== undefined && isUnclearProbe(error, exchange, spec))
      throw new ProbeFailedError('The probe was not understood', { cause: error })
    const failure = toMcpError(exchange.failure ?? error, spec, exchange)
    throw explain(prior ? failure : doubtful(failure, spec, exchange), wire, spec)
  } finally {
    clearTimeout(timer)
    context.ending.removeEventListener('abort', onEnding)
  }
}

/** While it connects, a server is asked only the probe, whose refusal is no failure, and `initialize`. */
const METHOD_NOT_FOUND = ProtocolErrorCode.MethodNotFound
const NO_REVISION =
  'speaks no protocol revision that Baton does: it knows no initialize, and offers none of the new ones.'

/** By transport: what is answered to a first request at a wrong address, or at one of the other transport */
const MISPLACED: Readonly<Record<string, readonly (number | undefined)[]>> = {
  streamable_http: [404, 405],
  sse: [400, 404, 405, 406],
}

/** The failure of an attempt without a verdict, with what may be wrong with the connector. */
function doubtful(failure: McpError, { name, transport }: McpServerSpec, { status }: Exchange): McpError {
  if (failure.rpcCode === METHOD_NOT_FOUND) return failure.but({ message: `${name} ${NO_REVISION}` })
  if (failure.rpcCode !== undefined || !MISPLACED[transport]?.includes(status)) return failure
  const other = transport === 'sse' ? 'streamable_http' : 'sse'
  return failure.but({
    message: `${failure.message} [Check its url, and whether its transport is ${other}.]`,
  })
}

const isSilence = (error: unknown): boolean =>
  error instanceof SdkError && error.code === SdkErrorCode.RequestTimeout

const DENIALS: ReadonlySet<string> = new Set([
  SdkErrorCode.ClientHttpAuthentication,
  SdkErrorCode.ClientHttpForbidden,
])

/** The server denied access to the probe. */
const isDenial = (error: unknown): boolean => error instanceof SdkHttpError && DENIALS.has(error.code)

function isUnclearProbe(error: unknown, exchange: Exchange, { auth }: McpServerSpec): boolean {
  if (!(error instanceof SdkError)) return false
  // Some gateways answer so to any method that they do not know (QwenPaw#7620, adcp-client#2434). A login is renewed
  // instead, once for each attempt.
  if (isDenial(error)) return auth === undefined
  // The probe has less time than the whole attempt.
  if (isSilence(error)) return !exchange.failure
  const isProbeError = error.code === SdkErrorCode.EraNegotiationFailed
  return isProbeError && exchange.status !== undefined && ![502, 503, 504].includes(exchange.status)
}

/**
 * Adds how a stdio server's process ended and what it said last. The last words go into the message if one owner made
 * the connector, and beside it if all owners read the message.
 */
export function explain(
  failure: McpError,
  { stdio }: Pick<Wire, 'stdio'>,
  { isConfigured = false }: Pick<McpServerSpec, 'isConfigured'>,
): McpError {
  if (!stdio || !['unavailable', 'timeout', 'disconnected'].includes(failure.kind)) return failure
  const { ending, words } = stdio.obituary()
  const told = [ending, !isConfigured && words ? `stderr: ${words}` : ''].filter((text) => text !== '')
  return failure.but({
    ...(told.length > 0 && { message: `${failure.message} [${told.join('; ')}]` }),
    ...(isConfigured && words && { lastWords: words }),
  })
}

function createWire(
  spec: McpServerSpec,
  context: ConnectionContext,
  negotiation: VersionNegotiationOptions,
): Wire {
  const isModern = () => client.getProtocolEra() === 'modern'
  const { transport, stdio, http } = createTransport(spec, context, isModern)
  const pages = createPages()
  const tapped = tap(transport, {
    answersInResponse: () => http !== null && !wire.hasChannel,
    onResult: (request, result) => {
      if (request.method === 'initialize') return repairGreeting(result)
      if (request.method === 'server/discover') return repairDiscovery(result)
      if (request.method === 'tools/call') return parcel(result, isModern())
      if (request.method !== 'tools/list') return result
      return pages.read(result, { cursor: request.params?.cursor, isModern: isModern() })
    },
    // A server that ends its list with an empty cursor, as in older revisions, refuses that one.
    meantBy: ({ method, params }, code) =>
      method === 'tools/list' && params?.cursor === '' && code === ProtocolErrorCode.InvalidParams
        ? LAST_PAGE
        : undefined,
  })
  if (stdio) stdio.onrefused = tapped.fail
  const client = createClient(context, negotiation)
  client.onerror = (error) => {
    // In the old SSE transport the stream is the session: the server would not know a new stream.
    if (error instanceof SseError) void client.close().catch(() => {})
  }
  const wire: Wire = { client, transport, tap: tapped, stdio, http, hasChannel: false, pages }
  return wire
}

function createClient(context: ConnectionContext, versionNegotiation: VersionNegotiationOptions): Client {
  const { elicit } = context
  const client = new Client(
    { name: 'baton', version: VERSION },
    {
      capabilities: elicit ? { elicitation: { form: { applyDefaults: true } } } : {},
      versionNegotiation,
      inputRequired: { maxRounds: 3 },
    },
  )
  if (elicit) client.setRequestHandler('elicitation/create', ({ params }) => elicit(params))
  client.setNotificationHandler('notifications/tools/list_changed', () => context.onListChanged())
  return client
}

/**
 * Takes a finished call's result past the SDK's schemas; an unfinished one (`input_required`, 2026-07-28) stays as it
 * is.
 */
function parcel(result: unknown, isModern: boolean): unknown {
  // In older revisions a result has no type, whatever it says there: the SDK would pass it on without its parcel.
  const type = isModern && isRecord(result) ? result.resultType : undefined
  if (typeof type === 'string' && type !== 'complete') return result
  return { resultType: 'complete', content: [], _meta: { [PARCEL]: result } }
}
