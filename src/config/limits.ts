/**
 * What `limits` of the YAML file takes, as data: for each, the bounds that it is checked by, its default and its
 * meaning. The settings page is made from them, too.
 */
import { type Static, Type } from 'typebox'
import { Duration, durationMs } from '../duration.ts'

const whole = (minimum: number, maximum: number, fallback: number, meaning: string) => ({
  schema: Type.Optional(Type.Integer({ minimum, maximum })),
  fallback,
  meaning,
})
const duration = (fallback: string, meaning: string) => ({
  schema: Type.Optional(Duration),
  fallback,
  meaning,
})

export const LIMITS = {
  concurrent_turns: whole(
    1,
    100_000,
    1000,
    'Turns that one replica runs at once; more wait, in fair order between owners.',
  ),
  waiting_turns: whole(
    0,
    100_000,
    1000,
    'Turns that may wait for one of those slots; more are refused with 503.',
  ),
  overload_delay: duration(
    'PT0.015S',
    'A replica whose event loop is late by this much more often than not, for a second or two, takes at most 32 turns.',
  ),
  database_pool: whole(1, 1000, 10, 'PostgreSQL connections per replica.'),
  upstream_connections: whole(1, 100_000, 1024, 'Connections from one replica to one provider.'),
  connect_timeout: duration('PT10S', 'How long to wait for a connection to a provider.'),
  first_byte_timeout: duration('PT5M', 'How long to wait for the response headers of a provider.'),
  idle_timeout: duration('PT5M', 'How long a provider may be silent in the middle of an answer.'),
}

const each = <K extends 'schema' | 'fallback'>(member: K) =>
  Object.fromEntries(Object.entries(LIMITS).map(([name, limit]) => [name, limit[member]])) as {
    [N in keyof typeof LIMITS]: (typeof LIMITS)[N][K]
  }

export const LimitsSchema = Type.Object(each('schema'), { additionalProperties: false })

/** The limits as the code takes them, with durations in milliseconds. */
export function limitsOf(file: Static<typeof LimitsSchema> = {}) {
  const limits = { ...each('fallback'), ...file }
  return {
    concurrentTurns: limits.concurrent_turns,
    waitingTurns: limits.waiting_turns,
    overloadMs: durationMs(limits.overload_delay),
    databasePool: limits.database_pool,
    upstreamConnections: limits.upstream_connections,
    connectTimeoutMs: durationMs(limits.connect_timeout),
    firstByteTimeoutMs: durationMs(limits.first_byte_timeout),
    idleTimeoutMs: durationMs(limits.idle_timeout),
  }
}
