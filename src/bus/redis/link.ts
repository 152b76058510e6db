/**
 * A replica's two connections to Redis: one for commands, one that listens. Nothing waits in a queue while
 * Redis is away: a command fails at once, and `persist` tries it again for a bounded time.
 */
import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis, type RedisOptions } from 'ioredis'
import type { Logger } from 'pino'
import { BatonError } from '../../errors.ts'
import { createPresence } from '../../log.ts'

/** How long an operation may be tried. After that, the engine goes on without the bus. */
const PERSIST_MS = 2000
/**
 * Fewest tries of an operation: a process that got no processor for so long, or was frozen, finds its time over and its
 * connection closed. It needs a moment to connect again to a Redis that was never away.
 */
const LEAST_TRIES = 8
/** Between attempts to find another server behind the name. */
const LEAVE_EVERY_MS = 1000
/** A connection on which an answer is overdue for this long is dead, even if TCP does not know it yet. */
const SILENCE_MS = 2000
/** The listening connection may be quiet for hours; only a ping shows whether it is alive. */
const PING_MS = 5000
const CHANNELS_AT_ONCE = 500

/** Sent by its hash, in full where Redis does not know it yet. */
export interface Script {
  lua: string
  sha: string
}
export const script = (lua: string): Script => ({ lua, sha: createHash('sha1').update(lua).digest('hex') })

/**
 * Writes and publishes, with keys of two slots, as appends do. A ping would not do: a server that is a replica, is
 * full, forbids writes or belongs to a cluster answers pings, too.
 */
const PROBE = script(`
redis.call('HSET', KEYS[1], 'at', 1)
redis.call('PEXPIRE', KEYS[1], 60000)
redis.call('PUBLISH', ARGV[1], '')
return 1
`)
/**
 * Since when the server `ARGV[1]` serves this data, in ms of its own clock; always later than for the server before
 * it.
 */
const ERA = script(`
local known, time = redis.call('HMGET', KEYS[1], 'run', 'began'), redis.call('TIME')
if known[1] == ARGV[1] then return known[2] end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local began = string.format('%.0f', math.max(now, tonumber(known[2] or '0') + 1))
redis.call('HSET', KEYS[1], 'run', ARGV[1], 'began', began)
return began
`)
/**
 * The code of a refusal that is about the server, or about this user's rights; undefined if it is about the command.
 * Redis 6 puts the script's line in front; from Redis 7 on, a right that a script lacks has no code.
 */
export const refusalOf = (words: string): string | undefined => REFUSAL.exec(words)?.[1]
const REFUSAL =
  /^(?:ERR |.*-)?(READONLY|OOM|MISCONF|NOPERM|NOREPLICAS|CROSSSLOT|MOVED|ACL failure in script|The user executing the script)\b/

/** The driver's words for a command that has no connection, or loses it: they name options of the driver. */
const isCutOff = (thrown: unknown): boolean =>
  thrown instanceof Error &&
  /^(?:Stream isn't writeable|Reached the max retries|Connection is closed)/.test(thrown.message)

const TALLY = script(`
local count = redis.call('INCR', KEYS[1])
redis.call('EXPIRE', KEYS[1], ARGV[1])
return count
`)

/** What Redis answers in place of a result, with the command that the driver adds. */
type Refusal = Error & { command?: { name: string } }

interface LinkDeps {
  url: string
  log: Logger
  /**
   * `isEarly`: said before `onMissed`: a reader may have missed messages before this one, and does not know it yet
   */
  onMessage(channel: string, message: string, isEarly: boolean): void
  /** Commands work again, or for the first time; may be told twice */
  onUp(): void
  /** A connection is there again, or for the first time: something that was said may have been missed */
  onMissed(): void
}

export type Link = ReturnType<typeof createLink>

/** Connects with `open`, and again whenever it must; a command in between fails at once. */
export function createLink({ url, log, onMessage, onUp, onMissed }: LinkDeps) {
  const commands = new Redis(url, OPTIONS)
  const listener = new Redis(url, OPTIONS)
  const channels = new Set<string>()
  /** The last operation was given up: each of the next ones gets one try, until one succeeds */
  let isDoubtful = false
  let isClosed = false
  let isListening = false
  let leftAt = Number.NEGATIVE_INFINITY
  /** Why a connection failed last: a command that is cut off fails without a reason */
  let lost: Error | null = null
  /** The era; null until somebody needs it on this connection */
  let knownEra: Promise<string> | null = null
  const presence = createPresence(log, 'Redis is away', 'Redis is back')

  for (const connection of [commands, listener]) {
    connection.on('error', (thrown: Refusal) => {
      const isSelect = thrown.command?.name === 'select'
      // AUTH, sent before, was refused with the reason.
      if (isSelect && thrown.message.startsWith('NOAUTH')) return
      if (!isCutOff(thrown)) lost = thrown
      presence.away(lost ?? thrown)
      // The driver would go on in database 0, which may be another installation's.
      if (isSelect) connection.disconnect(true)
    })
    connection.on('ready', presence.back)
  }
  commands.on('ready', () => {
    lost = null
    onUp()
    // Behind a proxy they may have reached another server than the listener, which noticed nothing: while Sentinel
    // makes a copy the primary, two servers say that they are it for some ten seconds.
    if (isListening) onMissed()
  })
  commands.on('close', () => {
    knownEra = null
  })
  listener.on('ready', () => {
    resubscribe().then(
      () => {
        isListening = true
        onMissed()
      },
      (err) => {
        presence.away(err)
        listener.disconnect(true)
      },
    )
  })
  listener.on('close', () => {
    isListening = false
  })
  listener.on('message', (channel: string, message: string) => {
    onMessage(channel, message, !isListening)
  })
  const pings = setInterval(() => {
    if (listener.status === 'ready') listener.ping().catch(() => {})
  }, PING_MS).unref()

  const reasonOf = (thrown: unknown): unknown =>
    isCutOff(thrown) ? (lost ?? new Error('The connection was closed.')) : thrown

  /** Channels in the order in which they came: those of the whole replica before its readers'. */
  async function resubscribe(): Promise<void> {
    const all = [...channels]
    for (let at = 0; at < all.length; at += CHANNELS_AT_ONCE) {
      await listener.subscribe(...all.slice(at, at + CHANNELS_AT_ONCE))
    }
  }

  /** A former primary keeps its connections: only new ones lead to the server that took its place, once there is one. */
  function leave(): void {
    if (performance.now() - leftAt < LEAVE_EVERY_MS) return
    leftAt = performance.now()
    for (const old of [commands, listener]) old.disconnect(true)
  }

  /**
   * Tries until an attempt succeeds or the time is over; only once if the last operation was given up. Throws
   * `unavailable`.
   */
  async function persist<T>(attempt: () => Promise<T>): Promise<T> {
    const until = performance.now() + PERSIST_MS
    for (let tries = 1, wait = 10; ; tries++, wait = Math.min(wait * 2, 200)) {
      try {
        const result = await attempt()
        presence.back()
        if (isDoubtful) {
          isDoubtful = false
          onUp()
        }
        return result
      } catch (thrown) {
        const cause = reasonOf(thrown)
        const refusal = refusalOf(thrown instanceof Error ? thrown.message : '')
        const isDemoted = refusal === 'READONLY'
        if (isDemoted) leave()
        const isOver = tries >= LEAST_TRIES && performance.now() + wait > until
        const isFinal = refusal !== undefined && !isDemoted
        if (isClosed || isDoubtful || isFinal || isOver) {
          isDoubtful = true
          presence.away(cause)
          return away(cause)
        }
        await sleep(wait)
      }
    }
  }

  async function run({ lua, sha }: Script, keys: string[], args: (string | number)[]): Promise<unknown> {
    try {
      return await commands.evalsha(sha, keys.length, ...keys, ...args)
    } catch (thrown) {
      if (!(thrown instanceof Error) || !thrown.message.startsWith('NOSCRIPT')) throw reasonOf(thrown)
      return commands.eval(lua, keys.length, ...keys, ...args)
    }
  }

  /**
   * Since when the server that answers serves this data, and its name: that of its process and of its history, which
   * changes as it becomes a primary. Asked once per connection. The era of an earlier connection does no harm: at
   * worst, a loss goes unnoticed.
   */
  function era(): Promise<string> {
    knownEra ??= learnEra().catch((thrown) => {
      knownEra = null
      throw thrown
    })
    return knownEra
  }
  async function learnEra(): Promise<string> {
    const said = await commands.info().catch((thrown: Error) => {
      // This user may not ask: for it, all is one era.
      if (refusalOf(thrown.message)) return ''
      throw thrown
    })
    const [, process] = /^run_id:(\w+)/m.exec(said) ?? []
    const [, history = ''] = /^master_replid:(\w+)/m.exec(said) ?? []
    const server = `${process}.${history}`
    return process ? `${await run(ERA, ['baton:era'], [server])} ${server}` : '0 -'
  }

  /** Part of the channels' names: in Redis, channels do not belong to a database. */
  const database = commands.options.db ?? 0
  const probe = () => persist(() => run(PROBE, ['baton:probe', 'baton:probe:2'], [`baton:${database}:probe`]))

  return {
    database,
    persist,
    run,
    era,
    fields: (key: string, ...names: string[]) => commands.hmget(key, ...names),
    async tally(key: string, seconds: number): Promise<number> {
      const count = await run(TALLY, [key], [seconds]).catch((thrown) => {
        // If this user may do all but this, nothing else shows that nobody counts.
        presence.away(thrown)
        return away(thrown)
      })
      return count as number
    },
    publish: (channel: string, message: string) => commands.publish(channel, message),
    /** Remembered until `unsubscribe`, across reconnections. */
    async subscribe(channel: string): Promise<void> {
      channels.add(channel)
      await persist(async () => {
        if (channels.has(channel)) await listener.subscribe(channel)
      })
    },
    unsubscribe(channel: string): void {
      channels.delete(channel)
      if (listener.status === 'ready') listener.unsubscribe(channel).catch(() => {})
    },
    /** Resolves after the first connection, or after the time that one may take. */
    async open(): Promise<void> {
      await Promise.allSettled([commands.connect(), listener.connect()])
      await probe().catch(() => {})
    },
    async ready(): Promise<void> {
      if (!isListening) {
        throw new BatonError('unavailable', 'The event bus is not listening.', { cause: lost })
      }
      await probe()
    },
    async close(): Promise<void> {
      isClosed = true
      presence.close()
      clearInterval(pings)
      commands.disconnect()
      listener.disconnect()
    },
  }
}

const away = (cause: unknown): never => {
  throw new BatonError('unavailable', 'The event bus is away.', { retryAfter: 1, cause })
}

const OPTIONS = {
  connectionName: 'baton',
  lazyConnect: true,
  enableOfflineQueue: false,
  autoResendUnfulfilledCommands: false,
  autoResubscribe: false,
  maxRetriesPerRequest: 0,
  connectTimeout: 5000,
  socketTimeout: SILENCE_MS,
  protocol: 2,
  retryStrategy: (attempt: number) => Math.min(50 * attempt, 1000) * (0.5 + Math.random() / 2),
} as const satisfies RedisOptions
