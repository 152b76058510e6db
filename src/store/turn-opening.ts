/**
 * How turns are opened: by one statement, `open_turn` of the schema, which decides all at once; by several if the
 * history is to be checked.
 */
import { type Message, NO_USAGE } from '../chat/message.ts'
import { boundOf, type StoredBindings, toBindings } from './bindings.ts'
import { type StoredCredential, toCredential } from './credentials.ts'
import { type Db, type Querying, value } from './db.ts'
import { record } from './json.ts'
import { asStored, type Placed } from './messages.ts'
import type { Parts, StoredMessage, StoredTurn } from './parts.ts'
import { visibleTo } from './sql.ts'
import {
  type Environment,
  type Opened,
  type OpenTurn,
  type RegistryRow,
  type Scope,
  type Session,
  type Turn,
  type TurnGround,
  type Turns,
  Unreadable,
} from './store.ts'

export function openings(db: Db, parts: Parts) {
  return {
    async ground(scope, session, provider) {
      const found = await value<StoredGround>(db, 'select turn_ground($1, $2, $3)', [
        visibleTo(scope),
        session,
        provider,
      ])
      return found && toGround(found)
    },
    async open(scope, request, fits) {
      if (fits) return openFitting(db, parts, scope, request, fits)
      const answer = await openTurn(db, scope, openRecord(request, parts))
      return answer && toOpened(answer, request, parts)
    },
    async openSurely(scope, request, environment) {
      const given = openRecord(request, parts, environment)
      const answer = await openTurn<OpenAnswer | { kind: 'unsure'; ground: StoredGround }>(db, scope, given)
      if (answer?.kind === 'unsure') return { kind: answer.kind, ground: toGround(answer.ground) }
      return answer && toOpened(answer, request, parts)
    },
  } satisfies Partial<Turns>
}

const openTurn = <Answer = OpenAnswer>(queries: Querying, scope: Scope, given: string) =>
  value<Answer>(queries, 'select open_turn($1, $2)', [visibleTo(scope), given])

/** As `open`, with the history that `fits` is shown. */
async function openFitting(
  db: Db,
  parts: Parts,
  scope: Scope,
  request: OpenTurn,
  fits: (history: Message[]) => void,
): Promise<Opened | null> {
  const { known_history: known, turn } = request
  for (;;) {
    // All of it is read before the session is locked. Its owner's heartbeat, which serves all turns of the owner, waits
    // for the lock.
    const seen = await historyAfter(db, scope, turn.session_id, 0)
    if (!seen) return null
    const history = seen.messages.map(parts.message)
    const answer = await db.transaction(async (queries) => {
      await value(queries, 'select lock_session($1, $2)', [visibleTo(scope), turn.session_id])
      // From here on no running turn adds anything.
      const since = await historyAfter(queries, scope, turn.session_id, seen.last_seq)
      if (!since) return null
      const { rewrites, last_seq: seq } = since
      if (rewrites !== seen.rewrites) return 'rewritten'
      history.push(...since.messages.map(parts.message))
      fits(history)
      // Else the statement would read all of it once more.
      const asked = { ...request, known_history: { rewrites, seq } }
      return openTurn(queries, scope, openRecord(asked, parts))
    })
    if (answer === 'rewritten') continue
    const had = known?.rewrites === seen.rewrites ? known.seq : 0
    const read = history.filter(({ seq }) => seq > had)
    return answer && toOpened(answer, request, parts, read)
  }
}

/** A session's messages after a seq, and how far they go. Null if there is no such session to see. */
async function historyAfter(queries: Querying, scope: Scope, session: string, seq: number) {
  const [row] = await queries.query<{ rewrites: number; last_seq: number; messages: StoredMessage[] }>(
    `select rewrites::float8 as rewrites, last_seq::float8 as last_seq, history(id, $3) as messages
       from session where id = $1 and ($2::text is null or owner = $2)`,
    [session, visibleTo(scope), seq],
  )
  return row ?? null
}

/** What `open_turn` returns; its functions are in the schema. */
type OpenAnswer =
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
interface StoredGround {
  session: Session
  named: StoredCredential | null
  preferred: StoredCredential | null
}
const toGround = ({ session, named, preferred }: StoredGround): TurnGround => ({
  session,
  credentials: { named: named && toCredential(named), preferred: preferred && toCredential(preferred) },
})

/** With `environment` the turn opens only if a credential is sure (Turns.openSurely). */
function openRecord(request: OpenTurn, parts: Parts, environment?: Environment): string {
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
function toOpened(answer: OpenAnswer, request: OpenTurn, parts: Parts, read?: Message[]): Opened {
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
