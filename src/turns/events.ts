/**
 * A turn's events: made, and said. What is true at once is said at once; what follows from a commit is kept with it
 * (run.ts) and said after it, under a key, by the process that owns the turn then.
 */
import type { Bus } from '../bus/bus.ts'
import type { Writer } from '../bus/writer.ts'
import type { TurnEvent, TurnEventBody } from '../chat/event.ts'
import type { Message } from '../chat/message.ts'
import { once } from '../chat/once.ts'
import type { AnnouncedEvent, NewMessage, Step, Turn, TurnEnd } from '../store/store.ts'
import type { ActiveTurn } from './active.ts'
import type { EngineDeps } from './deps.ts'

/** Who speaks of a turn that runs here; `index`: of the step, null for the turn as a whole. */
interface Speaker {
  deps: Pick<EngineDeps, 'log'>
  active: ActiveTurn
  writer: Writer
  index: number | null
}

/** `id` null: the event is the session's, while none of its turns runs */
export const event = (
  { id, session_id }: Pick<Turn, 'session_id'> & { id: string | null },
  step: number | null,
  body: TurnEventBody,
): TurnEvent => ({ ...body, session_id, turn_id: id, step, at: now() })

/** An event that is said once, however often it is announced; `name`: its own within the turn. */
export const announced = (
  turn: Pick<Turn, 'id' | 'session_id'>,
  step: number | null,
  name: string,
  body: TurnEventBody,
) => ({
  key: `${turn.id}:${name}`,
  event: event(turn, step, body),
})

let lastSecond = 0
let lastText = ''

/** The time as RFC 3339; all but the milliseconds is formatted once per second. */
export function now(): string {
  const ms = Date.now()
  const second = Math.floor(ms / 1000)
  if (second !== lastSecond) {
    lastSecond = second
    lastText = new Date(second * 1000).toISOString().slice(0, -4)
  }
  return `${lastText}${String(ms - second * 1000).padStart(3, '0')}Z`
}

/**
 * Says something that is true at once and need not survive a crash. With a key it is said once, however often the turn
 * is entered.
 */
export function say(
  { deps, active: { turn }, writer, index }: Speaker,
  body: TurnEventBody,
  key?: string,
): void {
  const once = key && `${turn.id}:${key}`
  writer.emit(event(turn, index, body), once).catch((err: unknown) => {
    deps.log.warn({ err, turn_id: turn.id }, 'an event was lost')
  })
}

/** Says what a commit announced. Events that are not known to be in the stream go with the next commit, too. */
export async function sayAll(
  { active: { unsaid }, writer, history }: Pick<Speaker, 'active' | 'writer'> & { history: Message[] },
  announce: readonly AnnouncedEvent[],
): Promise<void> {
  unsaid.push(...announce)
  const said = announce.map(async (one) => {
    const whole = hydrate(one.event, history)
    if (whole) await writer.emit(whole, one.key, one.lost)
    // The events before this one are in the stream, too, or their loss shows there as a gap.
    unsaid.splice(0, unsaid.indexOf(one) + 1)
  })
  await Promise.all(said)
}

/**
 * Puts what is stored into an announcement that named it: the message (null if it has been deleted since), or what the
 * result of a call holds.
 */
export function hydrate(announced: TurnEvent, stored: readonly Message[]): TurnEvent | null {
  if (announced.type === 'tool_execution.completed') {
    const { turn_id, call_id } = announced
    const answer = stored.findLast(
      (message) => message.turn_id === turn_id && contentsIn(message).has(call_id),
    )
    const content = answer && contentsIn(answer).get(call_id)
    // While the turn waits for other calls, the result is in no message yet, and the announcement has all of it.
    return content ? { ...announced, content } : announced
  }
  if (announced.type !== 'message') return announced
  const message = stored.findLast((candidate) => candidate.id === announced.message.id)
  return message ? { ...announced, message } : null
}

/** What the results in a message hold, by call: an answer may have made thousands. */
const contentsIn = once(
  ({ parts }: Message) =>
    new Map(parts.flatMap((part) => (part.type === 'tool_result' ? [[part.call_id, part.content]] : []))),
)

export function announcedMessage(turn: Turn, step: number, { id, role }: NewMessage): AnnouncedEvent {
  const { id: turn_id, session_id } = turn
  // The body is not kept twice: the stored message takes its place when the event is said (hydrate).
  const stub: Message = { id, session_id, turn_id, seq: 0, role, parts: [], created_at: '' }
  return announced(turn, step, id, { type: 'message', message: stub })
}

export const announcedEnd = (turn: Pick<Turn, 'id' | 'session_id' | 'usage'>, end: TurnEnd): AnnouncedEvent =>
  announced(turn, null, 'end', terminalEvent(end, turn.usage))

function terminalEvent(end: TurnEnd, usage: Step['usage']): TurnEventBody {
  switch (end.state) {
    case 'completed':
      return { type: 'turn.completed', finish_reason: end.finish_reason, usage }
    case 'failed':
      return { type: 'turn.failed', error: end.error }
    case 'cancelled':
      return { type: 'turn.cancelled' }
  }
}

/** Says something of a turn that has no writer here: it does not run here, or not yet. */
export async function sayDirectly(bus: Pick<Bus, 'append'>, { key, event }: AnnouncedEvent): Promise<void> {
  const { type, session_id, turn_id } = event
  await bus.append(session_id, [{ type, turn_id, data: JSON.stringify(event), once: key }])
}

/** Says that a turn exists that does not begin yet. */
export async function sayCreated({ bus, log }: Pick<EngineDeps, 'bus' | 'log'>, turn: Turn): Promise<void> {
  const created = announced(turn, null, 'created', { type: 'turn.created' })
  await sayDirectly(bus, created).catch((err: unknown) =>
    log.warn({ err, turn_id: turn.id }, 'an event was lost'),
  )
}
