/**
 * The way to one server over time: connects when needed, once for all who ask, remembers the protocol
 * revision, backs off from a server that is down, lets go of what nobody uses. How a connection works is
 * connection.ts, which is loaded with the first server: the SDK costs half a second of start-up.
 */
import { createBackoff } from './backoff.ts'
import { type Channel, keepChannel } from './channel.ts'
import type { Connection } from './connection.ts'
import { McpError, type McpServerSpec, type McpStatus } from './contract.ts'
import type { ConnectionContext, ConnectionSettings, Verdict } from './wire.ts'

/** The same for all who use a key. */
export interface LinkOptions {
  settings: ConnectionSettings
  isStdio: boolean
  /** Throws an McpError where no further connection of this kind may be made now */
  admit(): void
  /** For a first attempt; each that takes too long gives the next one twice the time, up to `attemptMs` */
  connectMs: number
  attemptMs: number
  idleMs: number
  drainMs: number
  /** The server announced a changed tool list */
  onListChanged(): void
}

/** A connection and who uses it. One that is let go closes with its last user. */
interface Held {
  connection: Connection
  users: number
  isLetGo: boolean
}

const VERDICT_MS = 24 * 3_600_000
/** After so many calls without an answer, none answered in between, the server is taken for stuck. */
const MAX_TIMEOUTS = 3

/** One connection at a time for all who use a key, with those that its former users still run on. */
export class Link {
  lastUsed = performance.now()
  readonly #options: LinkOptions
  readonly #backoff = createBackoff()
  readonly #open = new Set<Held>()
  readonly #closings = new Set<Promise<void>>()
  readonly #ending = new AbortController()
  #held: Held | null = null
  #connecting: Promise<Held> | null = null
  #channel: Channel | null = null
  #verdict: { value: Verdict; until: number } | null = null
  /** In words: the error itself holds its stack, and with it the client and the transport of its attempt */
  #lastError: Pick<McpError, 'kind' | 'message'> | null = null
  #timeouts = 0
  /** Attempts that took too long since one was quick */
  #late = 0
  #users = 0
  #interestUntil = 0
  /** Nobody will need it again: a connection ends with its last user */
  #isReleased = false
  #idleTimer: NodeJS.Timeout | undefined
  #isClosed = false
  #onDrained: (() => void) | null = null

  constructor(options: LinkOptions) {
    this.#options = options
  }

  /**
   * Runs on the connection, and once more on a new one where the server surely ran nothing. `wait`
   * wraps the wait for a connection in the caller's patience. Rejects with an McpError.
   */
  async use<T>(
    spec: McpServerSpec,
    wait: (connecting: Promise<Held>) => Promise<Held>,
    run: (connection: Connection) => Promise<T>,
  ): Promise<T> {
    this.#users++
    try {
      const held = await wait(this.#connected(spec))
      try {
        return await this.#runOn(held, run)
      } catch (error) {
        if (!held.connection.isStale(error)) throw error
        // Parallel calls notice the same loss; the first of them lets the old connection go.
        if (this.#held === held) this.#letGo()
        this.#verdict = null
        return await this.#runOn(await wait(this.#connected(spec)), run)
      }
    } finally {
      this.#leave()
    }
  }

  async #runOn<T>(held: Held, run: (connection: Connection) => Promise<T>): Promise<T> {
    held.users++
    try {
      return await run(held.connection)
    } finally {
      held.users--
      if (held.isLetGo && held.users === 0) this.#close(held)
    }
  }

  #leave(): void {
    this.#users--
    this.lastUsed = performance.now()
    if (this.#users === 0) this.#onDrained?.()
    this.#armIdle()
  }

  async #connected(spec: McpServerSpec): Promise<Held> {
    if (this.#isClosed) throw new McpError('unavailable', `${spec.name} is being closed.`, { sent: false })
    if (this.#held) return this.#held
    this.#connecting ??= this.#connect(spec).finally(() => {
      this.#connecting = null
    })
    return this.#connecting
  }

  async #connect(spec: McpServerSpec): Promise<Held> {
    const waitMs = this.#backoff.waitMs()
    if (waitMs > 0) {
      const why = this.#lastError ? `: ${this.#lastError.message}` : '.'
      throw new McpError('unavailable', `${spec.name} is down${why}`, { sent: false, retryAfterMs: waitMs })
    }
    this.#options.admit()
    try {
      const held = await this.#establish(spec)
      this.#held = held
      this.#verdict = { value: held.connection.verdict, until: performance.now() + VERDICT_MS }
      this.succeeded()
      this.#watch()
      // Whoever asked for it may have left meanwhile.
      this.#armIdle()
      return held
    } catch (error) {
      this.#verdict = null
      if (error instanceof McpError) this.failed(error, 'attempt')
      throw error
    }
  }

  async #establish(spec: McpServerSpec): Promise<Held> {
    const { openConnection } = await import('./connection.ts')
    const known = this.#verdict && this.#verdict.until > performance.now() ? this.#verdict.value : null
    let held: Held | null = null
    const context: ConnectionContext = {
      ...this.#options.settings,
      onListChanged: () => this.#options.onListChanged(),
      onClose: () => {
        if (held && held === this.#held) this.#letGo()
      },
      closing: (work) => this.#track(work),
      ending: this.ending,
    }
    const ms = this.patienceMs
    // Who was late may have been silent to the probe alone, as servers of 2025 are: time is kept to do without.
    const patience = this.#late === 0 ? { ms } : { ms, probeMs: ms / 2 }
    const connection = await openConnection(spec, context, known, patience)
    held = { connection, users: 0, isLetGo: false }
    this.#open.add(held)
    if (!this.#isClosed) return held
    this.#close(held)
    throw new McpError('unavailable', `${spec.name} is being closed.`, { sent: false })
  }

  /** The next user gets a new connection; running calls keep the old one until they end. */
  #letGo(): void {
    const held = this.#held
    this.#held = null
    this.#channel?.stop()
    this.#channel = null
    this.#timeouts = 0
    clearTimeout(this.#idleTimer)
    if (!held) return
    held.isLetGo = true
    if (held.users === 0) this.#close(held)
  }

  #close(held: Held): void {
    if (this.#open.delete(held)) this.#track(held.connection.close())
  }

  #track(work: Promise<void>): void {
    const done: Promise<void> = work.catch(() => {}).finally(() => this.#closings.delete(done))
    this.#closings.add(done)
  }

  succeeded(): void {
    this.#backoff.succeeded()
    this.#timeouts = 0
    this.#lastError = null
  }

  /** How long an attempt may take now: one that always needs longer than the first is let in some time. */
  get patienceMs(): number {
    const { connectMs, attemptMs } = this.#options
    return Math.min(connectMs * 2 ** this.#late, attemptMs)
  }

  /** An attempt took this long. */
  took(ms: number): void {
    if (ms < this.#options.connectMs) this.#late = 0
  }

  /** The next attempt is made whatever failed before. */
  retryNow(): void {
    this.#backoff.skip()
  }

  /** Books a failure. Calls do not count for the back-off: many of them share one cause. */
  failed(error: McpError, what: 'attempt' | 'call'): void {
    if (error.kind === 'cancelled' || (what === 'call' && error.kind === 'protocol')) return
    this.#lastError = { kind: error.kind, message: error.message }
    if (what === 'attempt' && error.kind !== 'auth_required') this.#backoff.failed()
    if (what === 'attempt' && error.kind === 'timeout') this.#late++
    if (error.kind === 'timeout' && ++this.#timeouts >= MAX_TIMEOUTS) this.#letGo()
    // A server that took another's place may refuse, in any words, what that one agreed to: the next attempt negotiates
    // anew. Not with a process: none is replaced under its connection, and it may hold what its tools have begun.
    const isRefused = error.kind === 'protocol' || error.kind === 'auth_required'
    if (what === 'attempt' && isRefused && !this.#options.isStdio) {
      this.#letGo()
      this.#verdict = null
    }
  }

  status(): McpStatus {
    const error = this.#lastError
    return { state: this.#state(), ...(error && { error: error.message }) }
  }

  #state(): McpStatus['state'] {
    if (this.#connecting) return 'connecting'
    if (this.#lastError?.kind === 'auth_required') return 'auth_required'
    if (this.#held) return 'ready'
    return this.#lastError ? 'down' : 'idle'
  }

  /** Keeps the connection, and its channel for notifications, for so long if one stands by now. */
  interest(forMs: number): void {
    // Who learned of the server before its release may say so after it.
    if (this.#isReleased) return
    this.#interestUntil = Math.max(this.#interestUntil, performance.now() + forMs)
    this.#watch()
    this.#armIdle()
  }

  #watch(): void {
    const connection = this.#held?.connection
    if (!connection || this.#interestUntil <= performance.now()) return
    if (this.#channel?.extend(this.#interestUntil)) return
    this.#channel = keepChannel(
      (signal, previous) => connection.listen(signal, previous),
      this.#interestUntil,
    )
  }

  /** One unref'd timer while a connection stands unused; none without. */
  #armIdle(): void {
    clearTimeout(this.#idleTimer)
    if (!this.#held || this.#users > 0) return
    const until = Math.max(this.lastUsed + this.#options.idleMs, this.#interestUntil)
    const left = until - performance.now()
    if (this.#isReleased || left <= 0) return this.rest()
    this.#idleTimer = setTimeout(() => this.#armIdle(), left)
    this.#idleTimer.unref()
  }

  /** Lets the connection go until it is needed again. */
  rest(): void {
    this.#letGo()
    this.#lastError = null
  }

  /** The same where nobody will need it again, whatever interest there was. */
  release(): void {
    this.#interestUntil = 0
    this.#isReleased = true
    this.rest()
  }

  /** A process is running, or just being started */
  hasProcess(): boolean {
    return this.#options.isStdio && (this.#held !== null || this.#connecting !== null)
  }

  isConnected(): boolean {
    return this.#held !== null
  }

  /** Nobody uses or watches it now */
  isIdle(): boolean {
    return this.#users === 0 && this.#connecting === null && this.#interestUntil <= performance.now()
  }

  /** Aborts with `close`: what may take long and is no call does not keep it waiting */
  get ending(): AbortSignal {
    return this.#ending.signal
  }

  /** For good: refuses new users, waits for running ones up to `drainMs`, then cuts them off. */
  async close(): Promise<void> {
    this.#isClosed = true
    this.#ending.abort()
    if (this.#users > 0) await this.#drained()
    this.#letGo()
    for (const held of this.#open) this.#close(held)
    await this.#connecting?.catch(() => {})
    await Promise.all(this.#closings)
  }

  #drained(): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, this.#options.drainMs)
      this.#onDrained = () => {
        clearTimeout(timer)
        resolve()
      }
    })
  }
}
