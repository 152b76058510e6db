/** How a turn is opened: what `open_turn` takes and returns, as the code knows it. */
import { type Message, NO_USAGE } from '../chat/message.ts'
import { boundOf, type StoredBindings, toBindings } from './bindings.ts'
import { type StoredCredential, toCredential } from './credentials.ts'
import { record } from './json.ts'
import { asStored, type Placed } from './messages.ts'
import type { Parts, StoredMessage, StoredTurn } from './parts.ts'
import {
  type Environment,
  type Opened,
  type OpenTurn,
  type RegistryRow,
  type Session,
  type Turn,
  type TurnGround,
  Unreadable,
} from './store.ts'

/** What `open_turn` returns; its functions are in the schema. */
export type OpenAnswer =
  | {
      kind: 'running'
      turn: MadeTurn
      message: Placed
      epoch: number
      start: {
        ground: StoredGround
        rewrites: number
        /** Messages before the turn's input */
        earlier: StoredMessage[] | null
        registry: RegistryRow | null
        bindings: StoredBindings
      }
    }
  | { kind: 'queued'; turn: MadeTurn; interrupted: string | null }
  | { kind: 'replayed'; turn: StoredTurn }
  | Extract<Opened, { kind: 'busy' | 'queue_full' | 'mismatch' }>
/** What the database adds to a new turn's request */
type MadeTurn = Pick<Turn, 'owner' | 'base_seq' | 'created_at'>
/** As SQL gives it: ground_json in the schema. */
export interface StoredGround {
  session: Session
  named: StoredCredential | null
  preferred: StoredCredential | null
}
export const toGround = ({ session, named, preferred }: StoredGround): TurnGround => ({
  session,
  credentials: { named: named && toCredential(named), preferred: preferred && toCredential(preferred) },
})

/** With `environment` the turn opens only if a credential is sure (Turns.openSurely). */
export function openRecord(request: OpenTurn, parts: Parts, environment?: Environment): string {
  const { turn, message, on_busy, queue_limit, lease, known_revision, known_history } = request
  const { id, session_id, max_steps, provider, model, idempotency_key, body_hash } = turn
  // Member by member, here and in newTurn: every turn comes by here, and spreading these costs more than writing them.
  return record({
    turn: {
      id,
      session_id,
      input: parts.seal(turn.input, session_id),
      context: parts.edits(turn.context, session_id),
      max_steps,
      provider,
      model,
      idempotency_key,
      body_hash,
    },
    message,
    on_busy,
    queue_limit,
    lease,
    known_revision,
    known_history,
    environment,
  })
}

/**
 * The statement returns only what the request does not say already. `read`: the earlier messages, if they were read
 * before it.
 */
export function toOpened(answer: OpenAnswer, request: OpenTurn, parts: Parts, read?: Message[]): Opened {
  if (answer.kind === 'busy' || answer.kind === 'queue_full' || answer.kind === 'mismatch') return answer
  if (answer.kind === 'replayed') return { kind: answer.kind, turn: parts.shownTurn(answer.turn) }
  const turn = newTurn(request.turn, answer.kind, answer.turn)
  if (answer.kind === 'queued') return { kind: answer.kind, turn, interrupted: answer.interrupted }
  const { session_id } = turn
  const fence = { session_id, owner: request.lease.owner, epoch: answer.epoch }
  const input = { id: request.message.id, turn_id: turn.id, role: 'user' as const, parts: turn.input }
  const message = asStored(session_id, input, answer.message)
  const { ground, rewrites, earlier, registry } = answer.start
  const bindings = toBindings(answer.start.bindings)
  const before = read ?? readable(earlier ?? [], parts)
  const { session, credentials } = toGround(ground)
  const start = before && {
    session,
    credentials,
    history: [...before, message],
    rewrites,
    registry,
    bindings,
    bound: boundOf(bindings),
  }
  return { kind: 'running', turn, fence, start }
}

/** Null if a message cannot be read: the turn is open already, and will say so itself. */
function readable(stored: StoredMessage[], parts: Parts): Message[] | null {
  try {
    return stored.map(parts.message)
  } catch (thrown) {
    if (thrown instanceof Unreadable) return null
    throw thrown
  }
}

const newTurn = (given: OpenTurn['turn'], state: 'running' | 'queued', made: MadeTurn): Turn => ({
  id: given.id,
  session_id: given.session_id,
  owner: made.owner,
  state,
  input: given.input,
  context: given.context,
  max_steps: given.max_steps,
  provider: given.provider,
  model: given.model,
  idempotency_key: given.idempotency_key,
  attempt: 1,
  restarts: 0,
  recoveries: 0,
  steps: [],
  usage: NO_USAGE,
  finish_reason: null,
  error: null,
  base_seq: made.base_seq,
  cancel_requested: false,
  created_at: made.created_at,
  started_at: state === 'running' ? made.created_at : null,
  ended_at: null,
})
