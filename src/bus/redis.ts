/**
 * The bus that replicas share. An append puts its events into the session's log and says them on the
 * session's channel, in one script, so that both have one order. Two connections serve a whole replica,
 * however many readers it has: one commands, one listens.
 */
import { randomBytes } from 'node:crypto'
import type { Logger } from 'pino'
import type { Metrics } from '../telemetry.ts'
import { type Bus, LOG_LIMITS, type LogLimits, type Topic } from './bus.ts'
import { formatCursor, NOWHERE, parseCursor, positionOf, sessionTag } from './cursor.ts'
import { createAppends } from './redis/appends.ts'
import { createInboxes } from './redis/inboxes.ts'
import { createLink } from './redis/link.ts'
import { createRead } from './redis/readers.ts'
import { createScripts } from './redis/scripts.ts'
import { createSharedSlots, type SharedSlots } from './redis/slots.ts'

export interface RedisBusDeps {
  url: string
  log: Logger
  metrics?: Pick<Metrics, 'eventsAppended' | 'eventsLost'>
  limits?: Partial<LogLimits>
  /** Milliseconds that a session is listened to after its last reader (30 s) */
  lingerMs?: number
}

/** Resolves once connected, or after a while without: the bus goes on trying, and `ready` says so. */
export async function openRedisBus({ url, log, metrics, limits, lingerMs }: RedisBusDeps): Promise<Bus> {
  const topics = new Map<Topic, Set<(message: string) => void>>()
  const tell = (topic: Topic, message: string) => {
    for (const fn of topics.get(topic) ?? []) fn(message)
  }
  const link = createLink({
    url,
    log,
    onMessage(channel, message, isEarly) {
      if (channel.startsWith(logs)) {
        // A reader would take an early message for the event that comes next.
        if (!isEarly) inboxes.hear(channel.slice(logs.length), message)
      } else if (shared.has(channel)) shared.get(channel)?.hear(message)
      else tell(channel.slice(controls.length) as Topic, message)
    },
    onUp() {
      appends.resetBroken()
      for (const session of undropped) drop(session).catch(() => {})
    },
    onMissed: () => inboxes.missed(),
  })
  const replica = randomBytes(6).toString('hex')
  const shared = new Map<string, SharedSlots>()
  const scripts = createScripts(link, replica, { ...LOG_LIMITS, ...limits })
  const appends = createAppends(link, scripts, metrics)
  const inboxes = createInboxes(link, scripts, lingerMs)
  const read = createRead(link, scripts, inboxes)
  /** Sessions that were deleted while Redis was away: their readers have yet to hear of it */
  const undropped = new Set<string>()
  async function drop(session: string): Promise<void> {
    undropped.add(session)
    await link.persist(() => scripts.drop(session))
    undropped.delete(session)
  }
  const present = (session: string) => link.persist(() => scripts.read(session, 'now', {})).catch(() => null)
  const logs = scripts.channel('')
  const controls = `baton:${link.database}:topic:`
  await link.open()

  return {
    append: appends.append,
    read: (session, options) => read(session, positionOf(session, options.after), options),
    async present(session) {
      const page = await present(session)
      return formatCursor(sessionTag(session), page?.position ?? NOWHERE)
    },
    async oldest(session) {
      const page = await present(session)
      return page ? formatCursor(sessionTag(session), page.oldest) : 'start'
    },
    pastEnd: async (session, turn, cursor, hasEnded) => {
      const position = parseCursor(cursor, session)
      return link.persist(() => scripts.pastEnd(session, turn, position, hasEnded)).catch(() => false)
    },
    drop,
    async publish(topic, message) {
      try {
        await link.publish(controls + topic, message)
      } catch (err) {
        // The other replicas do not hear it, but this one can at least hear itself.
        log.debug({ err, topic }, 'a message to the other replicas was lost')
        tell(topic, message)
      }
    },
    subscribe(topic, fn) {
      const known = topics.get(topic)
      topics.set(topic, (known ?? new Set()).add(fn))
      // If this fails, the next connection subscribes.
      if (!known) link.subscribe(controls + topic).catch(() => {})
    },
    slots(scope, total) {
      const made = createSharedSlots({ link, scope, total, replica, log })
      shared.set(made.channel, made)
      return made
    },
    tally: (name, seconds) => link.tally(`baton:tally:${name}`, seconds),
    ready: link.ready,
    async close() {
      for (const slots of shared.values()) slots.close()
      inboxes.close()
      await link.close()
    },
  }
}
