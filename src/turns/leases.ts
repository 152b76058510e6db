/**
 * What keeps turns alive across processes: the heartbeat of our leases, and the scan for work that nobody
 * owns. Both run at a third of the lease; losing the bus costs at most that long.
 */
import { newId } from '../chat/ids.ts'
import { OWNER_LOST, requestStop } from './active.ts'
import { hydrate } from './run.ts'
import type { EngineState } from './state.ts'

/** Turns taken over in one scan: a replica that starts after a crash must not drown in them. */
const SCAN_LIMIT = 20

export function startLeases(state: EngineState): { stop(): void } {
  const { leaseSeconds } = state.deps.settings
  const every = (leaseSeconds * 1000) / 3
  const beat = guarded(state, 'heartbeat failed', () => heartbeat(state))
  const look = guarded(state, 'scan failed', () => scan(state))
  const timers = [setInterval(beat, every), setInterval(look, every)]
  for (const timer of timers) timer.unref()
  void look()
  return {
    stop() {
      for (const timer of timers) clearInterval(timer)
    },
  }
}

/** One at a time: a slow store must not pile up scans. */
function guarded(state: EngineState, message: string, work: () => Promise<void>): () => Promise<void> {
  let isBusy = false
  return async () => {
    if (isBusy) return
    isBusy = true
    try {
      await work()
    } catch (err) {
      state.deps.log.warn({ err }, message)
    } finally {
      isBusy = false
    }
  }
}

async function heartbeat(state: EngineState): Promise<void> {
  const { store, settings } = state.deps
  const sessions = [...state.active.keys()]
  if (sessions.length === 0) return
  const kept = new Set(await store.turns.heartbeat(settings.replica, sessions, settings.leaseSeconds))
  for (const session of sessions) {
    const mine = state.active.get(session)
    if (mine && mine.phase !== 'ended' && !kept.has(session)) requestStop(mine, OWNER_LOST)
  }
}

async function scan(state: EngineState): Promise<void> {
  if (state.isDraining()) return
  const { store, settings, log } = state.deps
  const lease = { owner: settings.replica, seconds: settings.leaseSeconds }
  for (const { turn, fence, announce } of await store.turns.recover(lease, SCAN_LIMIT)) {
    log.warn({ turn_id: turn.id, recoveries: turn.recoveries }, 'turn taken over')
    state.launch(turn, fence, null, { kind: 'recovered', announce })
  }
  for (const session of await store.turns.idleQueues(SCAN_LIMIT)) await state.startNext(session)
  await expireApprovals(state)
  // Decided, and whoever took the decision died before it could resume the turn.
  for (const turn of await store.turns.resumable(SCAN_LIMIT)) await state.resume(turn)
  await announceLeftovers(state)
}

async function expireApprovals(state: EngineState): Promise<void> {
  const { store } = state.deps
  for (const { turn_id, call_id } of await store.turns.lapsedApprovals(SCAN_LIMIT)) {
    await store.executions.decide({ owner: '', admin: true }, turn_id, call_id, {
      decision: 'expired',
      reason: null,
      sealed_arguments: null,
      by: 'expiry',
    })
    await state.resume(turn_id)
  }
}

/** The end of a turn that was committed and, because its owner died or the bus was away, never said. */
async function announceLeftovers(state: EngineState): Promise<void> {
  const { store, bus } = state.deps
  for (const { session_id, turn_id, events } of await store.turns.unannounced(SCAN_LIMIT)) {
    const messages = await store.messages.ofTurn(turn_id)
    const said = events.map(({ key, event }) => {
      const whole = hydrate(event, messages)
      return { type: whole.type, turn_id, data: JSON.stringify(whole), once: key }
    })
    await bus.append(session_id, said)
    await store.turns.announced([turn_id])
  }
}

/** A replica's name as a lease owner: new for each process, since a restarted one owns nothing. */
export const replicaName = (): string => newId('req').replace('req_', 'replica_')
