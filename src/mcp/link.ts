/**
 * The connections to one server over time: connects when needed, once for all who ask, remembers the protocol revision,
 * leaves a server that is down alone (health.ts), and lets an unused connection go. connection.ts is how a connection
 * works; it is loaded with the first server, since the SDK costs half a second of start-up.
 */
import { within } from '../within.ts'
import { type Channel, type ChannelEnd, keepChannel } from './channel.ts'
import type { Connection } from './connection.ts'
import { McpError, type McpServerSpec, type McpStatus } from './contract.ts'
import { createHealth, type Health, type HealthOptions } from './health.ts'
import type { ConnectionSettings } from './transport.ts'
import type { ConnectionContext, Verdict } from './wire.ts'

/** Options that are the same for all who use a key. */
export interface LinkOptions extends Pick<HealthOptions, 'connectMs' | 'attemptMs'> {
  settings: ConnectionSettings
  isStdio: boolean
  /** Throws an McpError if no further connection of this kind may be made now */
  admit(): void
  idleMs: number
  drainMs: number
  /** The server announced a changed tool list */
  onListChanged(): void
  /** The tool list may have changed without a word to us: announcements may have been lost */
  onDoubt(): void
}

/** A connection with its users; once it is let go, it closes with the last of them. */
class Held {
  readonly connection: Connection
  /** Stays until then, too: a server may give a call's answer there (`hasChannel` in wire.ts). */
  channel: Channel | null = null
  readonly since = performance.now()
  readonly #close: () => void
  #users = 0
  #isLetGo = false

  constructor(connection: Connection, close: () => void) {
    this.connection = connection
    this.#close = close
  }

  async run<T>(work: (connection: Connection) => Promise<T>): Promise<T> {
    this.#users++
    try {
      return await work(this.connection)
    } finally {
      this.#users--
      if (this.#isLetGo && this.#users === 0) this.#close()
    }
  }

  letGo(): void {
    this.#isLetGo = true
    if (this.#users === 0) this.#close()
  }
}

/** A connection that lived this long was no failure. */
const STEADY_MS = 10_000

/** How long a server is taken to speak the revision that it was found to speak. */
const VERDICT_MS = 24 * 3_600_000

/** One connection at a time for all who use a key, and the former ones on which calls still run. */
export class Link {
  lastUsed = performance.now()
  readonly health: Health
  readonly #options: LinkOptions
  readonly #open = new Set<Held>()
  readonly #closings = new Set<Promise<void>>()
  readonly #ending = new AbortController()
  #held: Held | null = null
  #connecting: Promise<Held> | null = null
  #verdict: { value: Verdict; until: number } | null = null
  #users = 0
  #interestUntil = 0
  /** Nobody will need the link again: a connection ends with its last user */
  #isReleased = false
  #idleTimer: NodeJS.Timeout | undefined
  #onDrained: (() => void) | null = null

  constructor(options: LinkOptions) {
    this.#options = options
    this.health = createHealth(options)
  }

  /**
   * Runs on the connection, and once more on a new one if the connection was stale, so that the server surely ran
   * nothing. `wait` wraps the wait for a connection in the caller's patience. Rejects with an McpError.
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
        return await held.run(run)
      } catch (error) {
        if (!held.connection.isStale(error)) throw error
        // Parallel calls notice the same loss; the first of them lets the old connection go.
        if (this.#held === held) this.#letGo()
        this.#verdict = null
        const next = await wait(this.#connected(spec))
        return await next.run(run)
      }
    } finally {
      this.#leave()
    }
  }

  #leave(): void {
    this.#users--
    this.lastUsed = performance.now()
    if (this.#users === 0) this.#onDrained?.()
    this.#armIdle()
  }

  async #connected(spec: McpServerSpec): Promise<Held> {
    if (this.ending.aborted)
      throw new McpError('unavailable', `${spec.name} is being closed.`, { sent: false })
    if (this.#held) return this.#held
    this.#connecting ??= this.#connect(spec).finally(() => {
      this.#connecting = null
    })
    return this.#connecting
  }

  async #connect(spec: McpServerSpec): Promise<Held> {
    const waitMs = this.health.waitMs()
    if (waitMs > 0) {
      const last = this.health.last()
      const why = last ? `: ${last.message}` : '.'
      throw new McpError('unavailable', `${spec.name} is down${why}`, { sent: false, retryAfterMs: waitMs })
    }
    this.#options.admit()
    try {
      const held = await this.#establish(spec)
      this.#open.add(held)
      this.#held = held
      this.#remember(held.connection.verdict)
      this.health.succeeded()
      this.#watch(false)
      // The caller that asked for it may have left meanwhile.
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
        // A connection that was let go before ends with its last user.
        if (!held || held !== this.#held) return
        this.#letGo()
        this.#noteLoss(held)
      },
      closing: (work) => this.#track(work),
      ending: this.ending,
    }
    const connection = await openConnection(spec, context, known, this.health.patienceMs())
    if (this.ending.aborted) {
      this.#track(connection.close())
      throw new McpError('unavailable', `${spec.name} is being closed.`, { sent: false })
    }
    const made = new Held(connection, () => this.#close(made))
    held = made
    return made
  }

  /**
   * A connection of the SSE transport, which brings announcements by itself, has ended: who asks for the list opens the
   * next one. One that ended soon is left to its next use, and so is a process: it might end again and again.
   */
  #noteLoss({ since }: Held): void {
    const now = performance.now()
    const isFollowed = !this.#options.isStdio && this.#interestUntil > now
    if (isFollowed && now - since > STEADY_MS) this.#options.onDoubt()
  }

  /** The next user gets a new connection; running calls keep the old one until they end. */
  #letGo(): void {
    const held = this.#held
    this.#held = null
    this.health.reconnects()
    clearTimeout(this.#idleTimer)
    held?.letGo()
  }

  #close(held: Held): void {
    if (!this.#open.delete(held)) return
    held.channel?.stop()
    this.#track(held.connection.close())
  }

  #track(work: Promise<void>): void {
    const done: Promise<void> = work.catch(() => {}).finally(() => this.#closings.delete(done))
    this.#closings.add(done)
  }

  /** Reports a failure to `health`, and draws the consequences for this connection. */
  failed(error: McpError, what: 'attempt' | 'call'): void {
    this.health.failed(error, what)
    if (this.health.isStuck()) {
      this.#letGo()
      // Some servers answer the probe and then hang in the revision that they named: the next attempt does without a
      // probe. A server that knows no older revision refuses that attempt, and is probed again.
      if (what === 'attempt') this.#remember({ kind: 'legacy' })
    }
    // A server that took another's place may refuse, in any words, what its predecessor agreed to: the next attempt
    // negotiates anew. A process is kept: it cannot be replaced under its connection, and it may hold what its tools
    // have begun.
    const isRefused = error.kind === 'protocol' || error.kind === 'auth_required'
    // After three failures in a row: it may be only the session's own place that is gone (HTTP 503 from Envoy with a
    // strict stateful session). A rate limit, which is not `sent`, is no such sign.
    const isLost = error.kind === 'unavailable' && error.sent && this.health.waitMs() > 0
    if (what === 'attempt' && (isRefused || isLost) && !this.#options.isStdio) {
      this.#letGo()
      this.#verdict = null
    }
  }

  #remember(value: Verdict): void {
    this.#verdict = { value, until: performance.now() + VERDICT_MS }
  }

  status(): McpStatus {
    const last = this.health.last()
    return { state: this.#state(), ...(last && { error: last.message }) }
  }

  #state(): McpStatus['state'] {
    if (this.#connecting) return 'connecting'
    const last = this.health.last()
    if (last?.kind === 'auth_required') return 'auth_required'
    if (this.#held) return 'ready'
    return last ? 'down' : 'idle'
  }

  /** Keeps the connection, and its channel for notifications, for `forMs`, also one that is made later. */
  interest(forMs: number): void {
    // A caller that looked the link up before its release may still call this.
    if (this.#isReleased) return
    this.#interestUntil = Math.max(this.#interestUntil, performance.now() + forMs)
    this.#watch(true)
    this.#armIdle()
  }

  /** `hasStood`: the connection is not new. Without a channel, nothing was heard on it until now, except from a process. */
  #watch(hasStood: boolean): void {
    const held = this.#held
    if (!held || this.#interestUntil <= performance.now()) return
    if (held.channel?.extend(this.#interestUntil)) return
    let mayHaveMissed = hasStood && !this.#options.isStdio
    const doubt = (): void => {
      if (mayHaveMissed && held === this.#held) this.#options.onDoubt()
    }
    const listen = async (signal: AbortSignal, previous: ChannelEnd): Promise<ChannelEnd> => {
      try {
        const end = await held.connection.listen(signal, previous, doubt)
        // The server has forgotten the session, and may be another by now: it announces nothing here any more.
        if (end.isUnsupported) doubt()
        return end
      } finally {
        // Nothing is heard until the next one is open, also if this one never was.
        mayHaveMissed = true
      }
    }
    held.channel = keepChannel(listen, this.#interestUntil)
  }

  /** One unref'd timer while a connection is open and unused; else none. */
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
    this.health.rests()
  }

  /** `rest` for good: nobody will need the link again, whatever interest there was. */
  release(): void {
    this.#interestUntil = 0
    this.#isReleased = true
    this.rest()
  }

  /** How many processes run, or are being started; one that was let go runs on until its calls have ended */
  processes(): number {
    if (!this.#options.isStdio) return 0
    const isStarting = this.#connecting !== null && this.#held === null
    return this.#open.size + (isStarting ? 1 : 0)
  }

  isConnected(): boolean {
    return this.#held !== null
  }

  /** Whether the next user gets this connection */
  isHeld(connection: Connection | null): boolean {
    return this.#held?.connection === connection
  }

  /** Nobody uses or watches the link now */
  isIdle(): boolean {
    return this.#users === 0 && this.#connecting === null && this.#interestUntil <= performance.now()
  }

  /** Aborts with `close`: work that may take long and is no call does not keep `close` waiting */
  get ending(): AbortSignal {
    return this.#ending.signal
  }

  /** Closes for good: refuses new users, waits for running ones up to `drainMs`, then cuts them off. */
  async close(): Promise<void> {
    this.#ending.abort()
    const isDrained = new Promise<void>((resolve) => {
      this.#onDrained = resolve
    })
    if (this.#users > 0) await within(this.#options.drainMs, isDrained)
    this.#letGo()
    for (const held of this.#open) this.#close(held)
    await this.#connecting?.catch(() => {})
    await Promise.all(this.#closings)
  }
}
