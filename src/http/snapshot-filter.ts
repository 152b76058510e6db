/**
 * Leaves out of a stream what its reader has from a snapshot. A gap's snapshot is read after the place where the log
 * goes on, and a commit may fall between the two: its events come after the gap, but the snapshot tells the same.
 */
import type { LoggedEvent } from '../bus/bus.ts'
import type { SnapshotExtent } from '../bus/cursor.ts'
import { isTerminal } from '../chat/event.ts'
import { answeredCalls, type Message } from '../chat/message.ts'

/** `turn`: the turn that it shows; `messages`: all messages of that turn, or of its session. */
export interface Snapshot {
  turn: SnapshotExtent['turn']
  messages: readonly Pick<Message, 'id' | 'turn_id' | 'role' | 'parts'>[]
}

/** The filter of one stream. */
export interface SnapshotFilter {
  /** The reader has this snapshot now. It takes the place of the one before. */
  use(snapshot: Snapshot): void
  /** Whether the event is to be sent. Remembers which turns' beginnings were sent. */
  passes(event: LoggedEvent): boolean
}

/**
 * If the log was lost, a turn's next owner says in the new log again that the turn began. Readers that stayed have
 * heard that, or have it from a snapshot.
 */
const BEGINNING: readonly string[] = ['turn.created', 'turn.started']
/** Events that a step's message, or the turn's own record, covers. */
const OF_ANSWERS: readonly string[] = [
  'step.started',
  'content.delta',
  'reasoning.delta',
  'tool_call.delta',
  'tool_call',
  'usage',
  'step.completed',
  'step.discarded',
  'turn.restarted',
]
/** Events that a call's result covers. */
const OF_CALLS: readonly string[] = [
  'approval.required',
  'tool_execution.started',
  'tool_execution.progress',
  'tool_execution.completed',
]

export function createSnapshotFilter(): SnapshotFilter {
  const begun = new Set<string>()
  const key = (type: string, turn: string | null) => `${type} ${turn}`
  let shown: (event: LoggedEvent) => boolean = () => false
  return {
    use(snapshot) {
      shown = shownBy(snapshot)
      const { turn } = snapshot
      if (turn) begun.add(key('turn.created', turn.id))
      if (turn && turn.state !== 'queued') begun.add(key('turn.started', turn.id))
    },
    passes(event) {
      const { type, turn_id } = event
      if (shown(event)) return false
      if (isTerminal(type)) for (const first of BEGINNING) begun.delete(key(first, turn_id))
      if (!BEGINNING.includes(type)) return true
      const size = begun.size
      return begun.add(key(type, turn_id)).size > size
    },
  }
}

/** Returns a function that says whether the snapshot shows what an event says. */
function shownBy({ turn, messages }: Snapshot): (event: LoggedEvent) => boolean {
  const ids = new Set(messages.map(({ id }) => id))
  const results = new Set(messages.flatMap(answeredCalls))
  /** How many steps of each turn are committed: each step commits one message of the assistant */
  const steps = new Map<string | null, number>()
  for (const { turn_id, role } of messages) {
    if (role === 'assistant') steps.set(turn_id, (steps.get(turn_id) ?? 0) + 1)
  }
  return ({ type, turn_id, data }) => {
    // No snapshot shows a change of tools.
    if (type === 'tools.changed') return false
    if (turn_id === turn?.id && turn.state === 'ended') return true
    if (type === 'message') return ids.has(JSON.parse(data).message.id)
    if (OF_CALLS.includes(type)) return results.has(JSON.parse(data).call_id)
    const committed = steps.get(turn_id)
    if (committed === undefined || !OF_ANSWERS.includes(type)) return false
    if (JSON.parse(data).step < committed) return true
    // The turn is past what the snapshot shows: its deltas need not be read any more.
    steps.delete(turn_id)
    return false
  }
}
