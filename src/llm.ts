/**
 * The door to the providers' HTTP: render → send → decode → parse. No vendor is known here; a Deployment says what to
 * send and what an answer means.
 *
 * In src/llm/: requests.ts owns the connections, exchange.ts is one request and the clocks over its answer, answer.ts
 * reads a stream, and attempts.ts with retry.ts decides when a call is made again. models.ts and refused-content.ts know
 * what providers said before.
 */
import type { Logger } from 'pino'
import type { ModelEvent } from './chat/event.ts'
import type { Usage } from './chat/message.ts'
import { asBatonError, type BatonError } from './errors.ts'
import { Attempts, type AttemptsDeps, STREAM_HEADERS } from './llm/attempts.ts'
import { LlmStale } from './llm/exchange.ts'
import { createModels, type ModelLists } from './llm/models.ts'
import { createRefusedContent, type RefusedContent } from './llm/refused-content.ts'
import { createRequests, type RequestsDeps } from './llm/requests.ts'
import type { Tries } from './llm/retry.ts'
import { logLine } from './log.ts'
import type { Rendered } from './ports.ts'
import type { CredentialSecret, Deployment, ModelRequest, ParseContext, UpstreamFailure } from './provider.ts'
import type { Metrics, ModelCallRecord } from './telemetry.ts'
import { pause } from './within.ts'

export { LlmStale } from './llm/exchange.ts'
export { noTries, type Tries } from './llm/retry.ts'

/** One call of a model, which may take several attempts. */
export interface ModelCall {
  /** For the log */
  turn_id: string
  deployment: Deployment
  request: ModelRequest
  /** Opened for every attempt, so that a renewed token is used */
  secret(): Promise<CredentialSecret>
  context: ParseContext
  signal: AbortSignal
  /** Asked once per attempt, right before its bytes leave; on false nothing is sent and LlmStale is thrown */
  beforeSend(): boolean
  /** Asked once per call at most, after a refusal that `renewOn` names; true: the credential was renewed, so try again */
  onUnauthorized?: (() => Promise<boolean>) | undefined
  /**
   * Refusals that earlier calls of the same turn met for what they held, and that `amend` had an answer to. This request
   * is amended for them before it is first sent; those that it meets itself are added.
   */
  amended: UpstreamFailure[]
  /** The tries that were made for a request in whose place this one is sent; those of this call are added. */
  tries: Tries
}

/** The door to the providers: turns stream through it, previews show what it would send. */
export interface Llm {
  /**
   * Passes the call's events on as they come, all of one network read in the same pass of the event loop, and resolves
   * after the last. Throws the signal's reason, LlmStale, or a BatonError; after a throw the socket is gone.
   */
  stream(call: ModelCall, take: (event: ModelEvent) => void): Promise<void>
  /** What `stream` would send; values of headers that the operator added are `***`, too. */
  preview(deployment: Deployment, request: ModelRequest): Omit<Rendered, 'provider' | 'tools_revision'>
  /** What the provider reported about its models, as far as it is known now */
  readonly models: ModelLists
  /** What of a chat's content a later turn need not send again */
  readonly refused: Pick<RefusedContent, 'known'>
  /** Destroys every connection; calls in flight fail with `draining`. */
  close(): Promise<void>
}

export interface LlmDeps extends RequestsDeps {
  metrics: Pick<Metrics, 'modelCallEnded' | 'modelRetried'>
  log: Logger
  /** Milliseconds, for how long things take */
  now?(): number
  pause?: AttemptsDeps['pause']
  random?: AttemptsDeps['random']
}

/** How a call went, without its provider and model. */
interface Course extends Omit<ModelCallRecord, 'provider' | 'model'> {
  /** Null if the call is whole, or was cancelled */
  failure: BatonError | null
  attempts: number
}

export function createLlm(deps: LlmDeps): Llm {
  const { metrics, log } = deps
  const now = deps.now ?? (() => performance.now())
  const random = deps.random ?? Math.random
  const requests = createRequests(deps)
  const models = createModels(requests, now)
  const refused = createRefusedContent(now)

  async function stream(call: ModelCall, take: (event: ModelEvent) => void): Promise<void> {
    const attempts = new Attempts(call, {
      requests,
      random,
      pause: deps.pause ?? pause,
      onRetry({ code }, attempt, ms) {
        metrics.modelRetried(call.deployment.provider, code)
        log.debug({ code, attempt, ms }, 'model call tried again')
      },
      onLearned(model) {
        const { deployment, request, turn_id } = call
        if (!models.learn(deployment, request.credential, model)) return
        const { provider, id } = deployment
        const line = { turn_id, provider, deployment: id, model: model.id, known: model }
        log.info(line, 'what the provider refused is left out for a while')
      },
    })
    const started = now()
    const sinceStart = () => Math.round(now() - started)
    let firstEventMs: number | null = null
    let usage: Usage | null = null
    let outcome = 'cancelled'
    let failure: BatonError | null = null
    try {
      await attempts.answer((event) => {
        if (event.type === 'usage') usage = event.usage
        else firstEventMs ??= sinceStart()
        take(event)
      })
      outcome = 'ok'
      const { deployment, request, amended } = call
      const isTooMuch = amended.some((one) => deployment.classify(one).code === 'context_too_long')
      refused.note(deployment.provider, request, attempts.request, isTooMuch)
    } catch (thrown) {
      if (thrown instanceof LlmStale) outcome = 'stale'
      else if (!call.signal.aborted) {
        failure = asBatonError(thrown)
        outcome = failure.code
      }
      throw thrown
    } finally {
      if (outcome !== 'stale') {
        ended(call, { outcome, failure, attempts: attempts.count, ms: sinceStart(), firstEventMs, usage })
      }
    }
  }

  function ended({ turn_id, deployment, request }: ModelCall, course: Course): void {
    const { provider, id } = deployment
    const { model, session_id, credential } = request
    const { outcome, failure, attempts, ms, firstEventMs, usage } = course
    metrics.modelCallEnded({ provider, model, outcome, ms, firstEventMs, usage })
    const line = {
      session_id,
      turn_id,
      provider,
      deployment: id,
      model,
      credential_id: credential.id,
      outcome,
      attempts,
      ms,
      first_event_ms: firstEventMs,
      usage,
    }
    logLine(log, 'model call ended', line, failure)
  }

  return {
    stream,
    preview(deployment, request) {
      const { path, headers, body, notes } = deployment.render(request)
      const shown = requests.headers(deployment, {
        secret: MASKED,
        facts: request.credential,
        headers: { ...STREAM_HEADERS, ...headers },
      })
      for (const name of Object.keys(request.options.headers)) if (name in shown) shown[name] = '***'
      return { method: 'POST', url: requests.url(deployment, path).href, headers: shown, body, notes }
    },
    models,
    refused,
    close: requests.close,
  }
}

const MASKED: CredentialSecret = { api_key: '***', access_token: '***' }
