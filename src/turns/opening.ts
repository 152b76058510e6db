/** Accepts a turn or refuses it: what is checked before a turn exists, and the statement that opens it. */
import { applyEdits } from '../chat/edits.ts'
import { newId } from '../chat/ids.ts'
import type { Message } from '../chat/message.ts'
import { BatonError, invalid, isUnavailable, noSession } from '../errors.ts'
import type { Caller, StartTurn } from '../ports.ts'
import type { NewTurn, Opened, OpenTurn, Session, TurnGround } from '../store/store.ts'
import type { EngineDeps } from './deps.ts'
import { type Histories, wholeHistory } from './histories.ts'

/** Turns that may wait in one session (api.md section 4). */
const QUEUE_LIMIT = 16

/** A turn that exists now, or did before. */
export type Accepted = Exclude<Opened, { kind: 'busy' | 'queue_full' | 'mismatch' }>

/** Throws why the turn is refused: session_not_found, no_credential, turn_in_progress, … */
type Opening = (caller: Caller, session: string, request: StartTurn) => Promise<Accepted>

export function createOpening(
  deps: Pick<EngineDeps, 'store' | 'settings' | 'credentials' | 'tools'>,
  histories: Histories,
  isDraining: () => boolean,
): Opening {
  const { store, settings, credentials, tools } = deps

  async function open(caller: Caller, row: OpenTurn): Promise<Opened | null> {
    const { session_id, context, provider, model } = row.turn
    // Else the session has to be read: to refuse a provider without a model, or to fill in what was not named.
    const isWhole = model === null ? provider === null : provider !== null || row.on_busy === 'reject'
    const isPlain = context.length === 0 && isWhole
    if (!isPlain || settings.turnsPerOwner !== null || isDraining()) {
      const ground = await store.turns.ground(caller, session_id, provider)
      return ground && openOn(ground, caller, row)
    }
    // Only a credential has to be looked up first, and the statement that opens the turn does that.
    const opened = await store.turns.openSurely(caller, row, credentials.environment)
    return opened?.kind === 'unsure' ? openOn(opened.ground, caller, row) : opened
  }

  /** Checks all that may refuse the turn, and opens it. */
  async function openOn(ground: TurnGround, caller: Caller, given: OpenTurn): Promise<Opened | null> {
    const { session } = ground
    const row = { ...given, turn: wholeChoice(session, given) }
    const { session_id, context, idempotency_key: key, body_hash } = row.turn
    await assertRoom(session, row)
    try {
      if (isDraining()) throw new BatonError('draining', 'This replica is shutting down.', { retryAfter: 1 })
      assertModel(session, row.turn)
      await credentials.resolve(session, row.turn.provider ?? session.provider, ground.credentials)
      const fits = (history: Message[]) => void applyEdits(history, context)
      return await store.turns.open(caller, row, context.length > 0 ? fits : undefined)
    } catch (thrown) {
      // A request that would be refused now may have been taken before: its idempotency key brings that turn, whatever
      // has changed since.
      const known = key === null || isUnavailable(thrown) ? null : await store.turns.ofKey(session_id, key)
      if (!known) throw thrown
      return known.body_hash === body_hash ? { kind: 'replayed', turn: known.turn } : { kind: 'mismatch' }
    }
  }

  /** Concurrent requests may pass together: the limit is there against thousands, not against one more. */
  async function assertRoom({ id: session, owner }: Session, { turn, on_busy }: OpenTurn): Promise<void> {
    const most = settings.turnsPerOwner
    if (most === null) return
    const { idempotency_key } = turn
    const beside = { session, idempotency_key, interrupts: on_busy === 'interrupt' }
    if ((await store.turns.countOpen(owner, beside, most)) < most) return
    throw new BatonError('rate_limited', `${most} turns of ${owner} run or are queued already.`, {
      retryAfter: 5,
    })
  }

  return async (caller, id, request) => {
    const kept = histories.kept(id)
    const opened = await open(caller, {
      ...turnRow(id, request),
      queue_limit: QUEUE_LIMIT,
      lease: settings.lease,
      known_revision: tools.keptRevision(id),
      ...(kept ? { known_history: { rewrites: kept.rewrites, seq: kept.seq } } : {}),
    })
    if (opened?.kind === 'running' && opened.start) opened.start.history = wholeHistory(opened.start, kept)
    return assertAccepted(opened, id)
  }
}

/** A turn with another provider than the session's needs its own model: the session's model is none of that provider's. */
export function assertModel(
  session: Session,
  { provider, model }: Pick<StartTurn, 'provider' | 'model'>,
): void {
  if ((provider ?? session.provider) === session.provider || model !== null) return
  throw invalid('model', 'A turn with a provider of its own needs its own model.')
}

/**
 * A model that is named without a provider is one of the session's provider; the session's provider without a model
 * means the session's model. The session may change before a waiting turn begins, so such a turn keeps both as they
 * were when it was asked for.
 */
function wholeChoice(session: Session, { turn, on_busy }: OpenTurn): NewTurn {
  const { provider, model } = turn
  const isOfSession = provider === null || provider === session.provider
  if (on_busy === 'reject' || !isOfSession || (provider === null && model === null)) return turn
  return { ...turn, provider: session.provider, model: model ?? session.model }
}

function turnRow(session: string, request: StartTurn): Pick<OpenTurn, 'turn' | 'message' | 'on_busy'> {
  const { on_busy, ...given } = request
  return {
    turn: { id: newId('turn'), session_id: session, ...given },
    message: { id: newId('msg') },
    on_busy,
  }
}

function assertAccepted(opened: Opened | null, session: string): Accepted {
  if (!opened) throw noSession(session)
  switch (opened.kind) {
    case 'busy':
      throw new BatonError('turn_in_progress', 'The session is busy: wait, or give on_busy.', {
        details: { active_turn_id: opened.active_turn_id },
      })
    case 'queue_full':
      throw new BatonError('queue_full', 'Too many turns wait in this session.', { retryAfter: 5 })
    case 'mismatch':
      throw new BatonError('idempotency_mismatch', 'This Idempotency-Key was used with another body.', {
        param: 'Idempotency-Key',
      })
    default:
      return opened
  }
}
