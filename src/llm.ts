/**
 * The door to the providers' HTTP: render → send → decode → parse. It owns the connections, the clocks,
 * and the rule of when a call is made again: only while nothing of its answer was handed on. No vendor is
 * known here; a Deployment says what to send and what an answer means.
 */
import { setTimeout as sleepFor } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { Dispatcher } from 'undici'
import type { ModelEvent } from './chat/event.ts'
import type { Usage } from './chat/message.ts'
import type { Config } from './config/config.ts'
import { BatonError } from './errors.ts'
import { readAnswer } from './llm/answer.ts'
import { bodyBytes } from './llm/body.ts'
import { Exchange, LlmStale, type ResponseHead } from './llm/exchange.ts'
import { createModels, type ModelLists, type ModelsCaller } from './llm/models.ts'
import { createRetry, type Retry } from './llm/retry.ts'
import { scrubber } from './llm/scrub.ts'
import { logEnd } from './log.ts'
import { type ForwardProxy, upstreamAgent } from './outbound.ts'
import type {
  CredentialFacts,
  CredentialSecret,
  Deployment,
  ModelRequest,
  ParseContext,
  ReportedModel,
  UpstreamFailure,
} from './provider.ts'
import type { Metrics } from './telemetry.ts'

export { LlmStale } from './llm/exchange.ts'

export interface ModelCall {
  /** For the log */
  turn_id: string
  deployment: Deployment
  request: ModelRequest
  /** Opened for every attempt, so that a renewed token is used */
  secret(): Promise<CredentialSecret>
  context: ParseContext
  signal: AbortSignal
  /** Right before the bytes leave, once an attempt; false: not sent, LlmStale is thrown */
  beforeSend?(): boolean
  /** After a refusal that `renewOn` names, once: true when the credential was renewed and the call may be made again */
  onUnauthorized?(): Promise<boolean>
  /**
   * What the deployment's `amend` has amended for calls of the same turn: done to this request before it is sent,
   * and added to by this call.
   */
  amended?: UpstreamFailure[]
}

/** A request as it would be sent. */
interface Preview {
  method: string
  url: string
  /** Secrets, and values that the operator added, as `***` */
  headers: Record<string, string>
  body: Record<string, unknown>
  notes: string[]
}

export interface Llm {
  /**
   * Hands on the call's events, those of one network read in one pass of the event loop, and resolves after the
   * last. Throws the signal's reason, LlmStale, or a BatonError; after a throw the socket is gone.
   */
  stream(call: ModelCall, take: (event: ModelEvent) => void): Promise<void>
  /** What `stream` would send. */
  preview(deployment: Deployment, request: ModelRequest): Preview
  /** What the provider reported of its models, as far as it is known now */
  readonly models: ModelLists
  /** Destroys every connection; calls in flight fail with `draining`. */
  close(): Promise<void>
}

export interface LlmDeps {
  /** The upstream root of a deployment, without a trailing slash */
  baseUrl(deployment: Deployment): string
  limits: Pick<
    Config['limits'],
    'upstreamConnections' | 'connectTimeoutMs' | 'firstByteTimeoutMs' | 'idleTimeoutMs'
  >
  forwardProxy?: ForwardProxy | null
  version: string
  metrics: Pick<Metrics, 'modelCallEnded' | 'modelRetried'>
  log: Logger
  /** Absent: an own pool of connections */
  dispatcher?: Dispatcher
  /** Milliseconds, for how long things take */
  now?(): number
  /** Rejects when the signal is aborted */
  sleep?(ms: number, signal: AbortSignal): Promise<unknown>
  /** In [0, 1) */
  random?(): number
}

/** Bytes of one answer; the longest real ones, with images inside, are a tenth of it. */
const MAX_ANSWER = 64 << 20
/** Bytes of an error's body; vendors' pages of HTML are shorter. */
const MAX_ERROR = 256 << 10
/** Shorter than the idle time of common load balancers (60 s), so that a socket is seldom closed under a request. */
const KEEP_ALIVE_MS = 55_000
const MODELS_TIMEOUT_MS = 15_000
/** One request may be refused for one thing after another; each vendor's `amend` knows no more. */
const MOST_AMENDMENTS = 3
/** A list of models is asked for on nobody's behalf. */
const NEVER = new AbortController().signal

/** An answer that is no stream of events, with the adapter's reading of it. */
class Refused extends Error {
  readonly failure: UpstreamFailure
  readonly error: BatonError
  constructor(failure: UpstreamFailure, error: BatonError) {
    super(error.message)
    this.failure = failure
    this.error = error
  }
}

type Take = (event: ModelEvent) => void
/** What happened to a call so far. */
interface Progress {
  request: ModelRequest
  retry: Retry
  attempts: number
  /** A stream has answered the last attempt */
  isStreaming: boolean
  isRenewed: boolean
  amended: UpstreamFailure[]
  amendments: number
  started: number
  firstEventMs: number | null
  usage: Usage | null
}

export function createLlm(deps: LlmDeps): Llm {
  const { limits, metrics, log } = deps
  const now = deps.now ?? (() => performance.now())
  const random = deps.random ?? Math.random
  const sleep = deps.sleep ?? ((ms, signal) => sleepFor(ms, undefined, { signal }))
  const dispatcher = deps.dispatcher ?? newAgent(deps)
  const userAgent = `baton/${deps.version}`

  const headersFor = (
    deployment: Deployment,
    secret: CredentialSecret,
    facts: CredentialFacts,
    own: Readonly<Record<string, string>>,
  ): Record<string, string> => ({
    ...own,
    'user-agent': userAgent,
    ...sendable(deployment.authorize(secret, facts)),
  })
  const urlOf = (deployment: Deployment, path: string) => new URL(deps.baseUrl(deployment) + path)

  /** One attempt. Throws Refused for a response that is no stream. */
  async function send(call: ModelCall, progress: Progress, take: Take): Promise<void> {
    const { deployment, signal } = call
    const { request } = progress
    progress.attempts++
    progress.isStreaming = false
    const { path, method, headers, body } = deployment.render(request)
    const secret = await call.secret()
    const exchange = new Exchange({
      dispatcher,
      firstByteMs: limits.firstByteTimeoutMs,
      idleMs: limits.idleTimeoutMs,
      url: urlOf(deployment, path),
      method,
      headers: headersFor(deployment, secret, request.credential, { ...STREAM_HEADERS, ...headers }),
      body: bodyBytes(body),
      signal,
      maxBytes: MAX_ANSWER,
      beforeSend: () => call.beforeSend?.() ?? true,
    })
    const scrub = scrubber(secret)
    const classify = (failure: UpstreamFailure) =>
      deployment.classify({ ...failure, body: scrub.text(failure.body) })
    const head = await exchange.head()
    if (!isStream(head)) {
      const failure: UpstreamFailure = { ...head, body: await exchange.text(MAX_ERROR) }
      throw new Refused(failure, classify(failure))
    }
    progress.isStreaming = true
    const parser = deployment.parser(call.context, head.headers)
    await readAnswer(exchange, head, { parser, classify, scrub }, take)
  }

  /** The request to try next. Throws the error to give up with. */
  async function recover(call: ModelCall, progress: Progress, thrown: unknown): Promise<ModelRequest> {
    call.signal.throwIfAborted()
    if (thrown instanceof Refused) {
      const { failure } = thrown
      const { renewOn = [401] } = call.deployment
      const mayRenew = thrown.error.code === 'upstream_auth' && renewOn.includes(failure.status)
      if (mayRenew && call.onUnauthorized && !progress.isRenewed) {
        progress.isRenewed = true
        if (await call.onUnauthorized()) return progress.request
      }
      if (failure.status >= 400 && failure.status < 500 && progress.amendments < MOST_AMENDMENTS) {
        const amended = call.deployment.amend?.(failure, progress.request)
        if (amended) {
          progress.amendments++
          progress.amended.push(failure)
          return amended
        }
      }
    }
    const error = thrown instanceof Refused ? thrown.error : thrown
    const wait = error instanceof BatonError ? progress.retry.wait(error, progress.isStreaming) : null
    if (wait === null || !(error instanceof BatonError)) throw error
    metrics.modelRetried(call.deployment.provider, error.code)
    log.debug({ code: error.code, attempt: progress.attempts, ms: wait }, 'model call tried again')
    await sleep(wait, call.signal).catch((reason: unknown) => {
      call.signal.throwIfAborted()
      throw reason
    })
    return progress.request
  }

  /**
   * Attempts until an answer has begun in earnest. Nothing is handed on before an event that a reader
   * would see, so that an overload told as the first event is still retried (wire/openai.md 7.2).
   */
  async function answered(call: ModelCall, progress: Progress, take: Take): Promise<void> {
    const hand: Take = (event) => {
      if (event.type === 'usage') progress.usage = event.usage
      take(event)
    }
    while (true) {
      let held: ModelEvent[] | null = []
      const release = () => {
        progress.firstEventMs ??= Math.round(now() - progress.started)
        held?.forEach(hand)
        held = null
      }
      try {
        await send(call, progress, (event) => {
          if (!held) return hand(event)
          held.push(event)
          if (event.type !== 'usage') release()
        })
        return release()
      } catch (thrown) {
        if (!held) throw thrown
        progress.request = await recover(call, progress, thrown)
      }
    }
  }

  async function stream(call: ModelCall, take: Take): Promise<void> {
    const { deployment, amended = [] } = call
    const progress: Progress = {
      request: amended.reduce((request, one) => deployment.amend?.(one, request) ?? request, call.request),
      retry: createRetry(random),
      attempts: 0,
      isStreaming: false,
      isRenewed: false,
      amended,
      amendments: 0,
      started: now(),
      firstEventMs: null,
      usage: null,
    }
    let outcome = 'cancelled'
    try {
      await answered(call, progress, take)
      outcome = 'ok'
    } catch (thrown) {
      if (!call.signal.aborted) outcome = thrown instanceof BatonError ? thrown.code : 'internal'
      if (thrown instanceof LlmStale) outcome = 'stale'
      throw thrown
    } finally {
      if (outcome !== 'stale') ended(call, progress, outcome)
    }
  }

  function ended({ turn_id, deployment, request }: ModelCall, progress: Progress, outcome: string): void {
    const { provider, id } = deployment
    const { attempts, firstEventMs, usage } = progress
    const { model, session_id } = request
    const ms = Math.round(now() - progress.started)
    metrics.modelCallEnded({ provider, model, outcome, ms, firstEventMs, usage })
    logEnd(log, 'model call ended', {
      session_id,
      turn_id,
      provider,
      deployment: id,
      model,
      outcome,
      attempts,
      ms,
      first_event_ms: firstEventMs,
      usage,
    })
  }

  async function fetchModels(
    deployment: Deployment,
    { facts, secret }: ModelsCaller,
  ): Promise<ReportedModel[]> {
    const { models } = deployment
    if (!models) return []
    const opened = await secret()
    const exchange = new Exchange({
      dispatcher,
      firstByteMs: Math.min(MODELS_TIMEOUT_MS, limits.firstByteTimeoutMs),
      idleMs: Math.min(MODELS_TIMEOUT_MS, limits.idleTimeoutMs),
      url: urlOf(deployment, models.path),
      method: 'GET',
      headers: headersFor(deployment, opened, facts, { accept: 'application/json', ...models.headers }),
      body: null,
      signal: NEVER,
      maxBytes: MAX_ANSWER,
    })
    const head = await exchange.head()
    const body = await exchange.text(MAX_ANSWER)
    const json = head.status === 200 ? parsed(body) : undefined
    // Nobody is told: without a list the adapter's own table counts.
    if (json === undefined) throw new Error(`a list of models was answered with ${head.status}`)
    return models.parse(json)
  }
  return {
    stream,
    preview(deployment, request) {
      const { method, path, headers, body, notes } = deployment.render(request)
      const shown = headersFor(deployment, MASKED, request.credential, { ...STREAM_HEADERS, ...headers })
      for (const name of Object.keys(request.options.headers)) if (name in shown) shown[name] = '***'
      return { method, url: urlOf(deployment, path).href, headers: shown, body, notes }
    },
    models: createModels(fetchModels, now),
    close: async () => {
      if (!deps.dispatcher) await dispatcher.destroy()
    },
  }
}

const STREAM_HEADERS = { accept: 'text/event-stream', 'content-type': 'application/json' }
const MASKED: CredentialSecret = { api_key: '***', access_token: '***' }

/** TCP_NODELAY is undici's own default; no pipelining, since every answer is a long stream. */
const newAgent = ({ limits, forwardProxy = null }: LlmDeps) =>
  upstreamAgent(forwardProxy, {
    connections: limits.upstreamConnections,
    connectTimeout: limits.connectTimeoutMs,
    keepAliveTimeout: KEEP_ALIVE_MS,
    pipelining: 1,
  })

/**
 * A 2xx is a stream unless it says outright that it is something else: the type may be missing
 * (wire/openai.md 3), and a page of the network's edge or a bare JSON error may come with a 200.
 */
const isStream = ({ status, headers }: ResponseHead): boolean =>
  status >= 200 && status < 300 && !/\b(?:html|json)\b/i.test(headers['content-type'] ?? '')

function sendable(headers: Record<string, string>): Record<string, string> {
  for (const [name, value] of Object.entries(headers)) {
    // undici would refuse it too, as a fault of ours.
    if (!/[^\t\x20-\x7e\x80-\xff]/.test(value)) continue
    const words = `The credential holds characters that the header ${name} cannot carry. Store it again.`
    throw new BatonError('upstream_auth', words)
  }
  return headers
}

function parsed(body: string): unknown {
  try {
    return JSON.parse(body)
  } catch {
    return undefined
  }
}
