/** One model call, made again if that may help, and only while nothing of its answer was passed on. */
import type { ModelEvent } from '../chat/event.ts'
import { BatonError } from '../errors.ts'
import { authorising } from '../foreign.ts'
import type { ModelCall } from '../llm.ts'
import type { ModelRequest, ReportedModel, UpstreamFailure } from '../provider.ts'
import { unlessAborted } from '../within.ts'
import { type Answer, isError, readAnswer } from './answer.ts'
import { bodyBytes } from './body.ts'
import type { ResponseHead } from './exchange.ts'
import type { Requests } from './requests.ts'
import { retryWait } from './retry.ts'
import { scrubber } from './scrub.ts'

/** Bytes of an error's body; vendors' pages of HTML are shorter. */
const MAX_ERROR = 256 << 10
/** One call may be refused for several reasons, one after the other. */
const MOST_AMENDMENTS = 3

export const STREAM_HEADERS = { accept: 'text/event-stream', 'content-type': 'application/json' }

export interface AttemptsDeps {
  requests: Requests
  /** Resolves early when the signal is aborted */
  pause(ms: number, signal: AbortSignal): Promise<unknown>
  /** In [0, 1) */
  random(): number
  /** Told before the wait, with the attempt that failed, counted from 1 */
  onRetry(error: BatonError, attempt: number, waitMs: number): void
  /** Told what is now known of the model, including what this refusal says */
  onLearned(model: ReportedModel): void
}

/** An answer that is no event stream, or ends one with an error as JSON, with the adapter's reading of it. */
class Refused extends Error {
  readonly failure: UpstreamFailure
  readonly error: BatonError
  /** A stream had begun before it */
  readonly begun: boolean
  constructor(failure: UpstreamFailure, error: BatonError, begun: boolean) {
    super(error.message)
    this.failure = failure
    this.error = error
    this.begun = begun
  }
}

type Take = (event: ModelEvent) => void

export class Attempts {
  readonly #call: ModelCall
  readonly #deps: AttemptsDeps
  /** As the next attempt sends it */
  request: ModelRequest
  #amendments = 0
  #isRenewed = false
  /** What may be a stream has answered the last attempt */
  #isStreaming = false
  /** How many attempts were made */
  count = 0

  constructor(call: ModelCall, deps: AttemptsDeps) {
    this.#call = call
    this.#deps = deps
    const { deployment, request, amended } = call
    this.request = amended.reduce((sent, failure) => deployment.amend(failure, sent) ?? sent, request)
  }

  /**
   * Makes attempts until an answer has really begun, and passes it on. Nothing is passed on before an event that a
   * reader would see, so that an overload reported as the first event is still retried (wire/openai.md 7.2). Of a call
   * that is stopped or fails before it, the usage so far is passed on.
   */
  async answer(take: Take): Promise<void> {
    while (true) {
      let held: ModelEvent[] | null = []
      const release = () => {
        for (const event of held ?? []) take(event)
        held = null
      }
      try {
        return await readAnswer(await this.#send(), (event) => {
          if (!held) return take(event)
          held.push(event)
          if (event.type !== 'usage') release()
        })
      } catch (thrown) {
        if (!held) throw thrown instanceof Refused ? thrown.error : thrown
        await this.#recover(thrown).catch((end: unknown) => {
          // The call is over: what the vendor had counted by then, before its first word, it may charge for.
          release()
          throw end
        })
      }
    }
  }

  /** One attempt, up to its answer's head. Throws Refused for a response that is not a stream. */
  async #send(): Promise<Answer> {
    const { deployment, signal, context, beforeSend } = this.#call
    this.count++
    this.#isStreaming = false
    const { path, headers, body } = deployment.render(this.request)
    const bytes = await bodyBytes(body)
    // A login may have to be renewed for it, which takes a minute at worst.
    const secret = await unlessAborted(signal, this.#call.secret())
    const exchange = this.#deps.requests.send(deployment, {
      secret,
      facts: this.request.credential,
      headers: { ...STREAM_HEADERS, ...headers },
      path,
      body: bytes,
      signal,
      beforeSend,
    })
    // The operator's headers may hold a key, and callers hear what a relay says of it.
    const scrub = scrubber([
      ...Object.values(secret),
      ...authorising(Object.entries(this.request.options.headers)),
    ])
    const head = await exchange.head()
    const refused = (body: string, begun: boolean) => {
      const error = scrub.error(deployment.classify({ ...head, body: scrub.text(body) }))
      return new Refused({ ...head, body }, error, begun)
    }
    if (!mayBeStream(head)) throw refused(await exchange.text(MAX_ERROR), false)
    this.#isStreaming = true
    return { exchange, parser: deployment.parser(context, head.headers), refused, scrub }
  }

  /** Makes the next attempt ready. Throws the error to give up with. */
  async #recover(thrown: unknown): Promise<void> {
    const refused = thrown instanceof Refused ? thrown : null
    if (refused && (await this.#renew(refused))) return
    const failure = refused ? refusalOf(refused) : refusalIn(thrown)
    if (failure && this.#amend(failure)) return
    await this.#wait(refused?.error ?? thrown, refused?.begun ?? this.#isStreaming)
  }

  /** Renews the credential, once. True: the same request may be accepted now. */
  async #renew({ error, failure }: Refused): Promise<boolean> {
    const { renewOn = [401] } = this.#call.deployment
    const isCurable = error.code === 'upstream_auth' && renewOn.includes(failure.status)
    if (!isCurable || !this.#call.onUnauthorized || this.#isRenewed) return false
    this.#isRenewed = true
    return unlessAborted(this.#call.signal, this.#call.onUnauthorized())
  }

  /** Replaces the refused request if the deployment has another one to send instead. Returns whether it has. */
  #amend(failure: UpstreamFailure): boolean {
    if (this.#amendments === MOST_AMENDMENTS) return false
    const { settings } = this.request
    const amended = this.#call.deployment.amend(failure, this.request)
    if (!amended) return false
    const { reported } = amended
    if (reported && reported !== this.request.reported) this.#deps.onLearned(reported)
    // A forced choice that was given up is not noted: later requests of the turn force none, and for these `amend` would
    // take the same wordless refusal as one of something else.
    else if (amended.settings.tool_choice === settings.tool_choice) this.#call.amended.push(failure)
    this.request = amended
    this.#amendments++
    return true
  }

  /** Resolves when the same request may be sent again; throws the error if it may not. `begun`: as of `retryWait`. */
  async #wait(error: unknown, begun: boolean): Promise<void> {
    if (!(error instanceof BatonError)) throw error
    const ms = retryWait(this.#call.tries, error, begun, this.#deps.random())
    if (ms === null) throw error
    this.#deps.onRetry(error, this.count, ms)
    const { signal } = this.#call
    await this.#deps.pause(ms, signal)
    signal.throwIfAborted()
  }
}

const isRefusal = ({ code }: BatonError): boolean =>
  code === 'upstream_rejected' || code === 'context_too_long'

/**
 * The refusal under the status that it should have: llama.cpp reports images that its model does not take as a fault of
 * the server's, and relays hand a vendor's refusal on as an answer with status 200.
 */
function refusalOf({ failure, error }: Refused): UpstreamFailure | null {
  if (failure.status >= 400 && failure.status < 500) return failure
  return isRefusal(error) && isError(failure.body) ? { ...failure, status: 400 } : null
}

/** A refusal at a stream's beginning in the form that it should have; OpenAI reports bad images so. */
function refusalIn(thrown: unknown): UpstreamFailure | null {
  if (!(thrown instanceof BatonError && isRefusal(thrown))) return null
  return { status: 400, headers: {}, body: JSON.stringify({ error: thrown.details?.upstream }) }
}

/**
 * A 2xx is read as a stream unless it is a page of the network's edge: the type may be missing (wire/openai.md 3), and
 * relays call streams JSON (xiaoliu10/claude-code-router-next#41, Wei-Shaw/sub2api#2826).
 */
const mayBeStream = ({ status, headers }: ResponseHead): boolean =>
  status < 300 && !/\bhtml\b/i.test(headers['content-type'] ?? '')
