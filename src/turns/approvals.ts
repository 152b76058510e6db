/**
 * A person's decision on a tool call that waits: checked, then written to the ledger, where the process that resumes
 * the turn reads it.
 */
import { BatonError, invalid } from '../errors.ts'
import type { Caller, Decision } from '../ports.ts'
import { EVERYONE, type Execution, type Store } from '../store/store.ts'
import { redactJson, redactText } from '../tools/redact.ts'
import type { EngineDeps } from './deps.ts'
import { TOOL_GONE } from './fate.ts'

/** The turn's call as the ledger has it. Throws tool_call_not_found. */
export async function findCall(
  store: Pick<Store, 'executions'>,
  turn: string,
  call: string,
): Promise<Execution> {
  const found = (await store.executions.ofTurn(turn, 'told')).find(({ call_id }) => call_id === call)
  if (found) return found
  throw new BatonError('tool_call_not_found', `The turn has no tool call ${call}.`)
}

/** Throws tool_call_not_found, not_awaiting, and invalid_request for edited arguments that do not fit. */
export async function recordDecision(
  deps: EngineDeps,
  caller: Caller,
  turn: string,
  call: string,
  given: Decision,
): Promise<void> {
  const { store, sealed } = deps
  const row = await findCall(store, turn, call)
  const edited = given.arguments
  if (edited) await assertFitting(deps, row, edited)
  const { decision, reason = null } = given
  const answer = await store.executions.decide(caller, turn, call, {
    decision,
    // Redacted, since it goes into the ledger, and from there to the model.
    reason: reason === null ? null : await redactText(reason),
    sealed_arguments: edited ? sealed.seal(edited, row.id) : null,
    ...(edited ? { arguments: await redactJson(edited) } : {}),
    by: caller.key_id ?? caller.owner,
  })
  if (answer === 'decided') return
  // A caller who decided before and lost our answer reads here which decision counts. It may have been made just now.
  const { approval } = await findCall(store, turn, call)
  throw new BatonError('not_awaiting', `Tool call ${call} does not wait for an approval.`, {
    ...(approval ? { details: { decision: approval.decision } } : {}),
  })
}

/**
 * Marks as expired the calls that wait for a person and whose tools are gone; the process that resumes the turn
 * settles them. Returns whether there were any.
 */
export async function expireRemoved(
  store: Pick<Store, 'executions'>,
  turn: string,
  removed: readonly string[],
): Promise<boolean> {
  if (removed.length === 0) return false
  const rows = await store.executions.ofTurn(turn, 'told')
  const waiting = rows.filter((row) => row.state === 'awaiting_approval' && removed.includes(row.tool))
  for (const { call_id } of waiting) {
    const decision = {
      decision: 'expired',
      reason: TOOL_GONE.text,
      sealed_arguments: null,
      by: 'removal',
    } as const
    await store.executions.decide(EVERYONE, turn, call_id, decision)
  }
  return waiting.length > 0
}

/** A tool that is gone by now has no schema to check the arguments against: its call will be settled without a run. */
async function assertFitting(
  deps: Pick<EngineDeps, 'tools' | 'executor'>,
  row: Execution,
  args: Record<string, unknown>,
): Promise<void> {
  const registry = await deps.tools.newest(row.session_id)
  const tool = registry.tools.find(({ canonical_name }) => canonical_name === row.tool)
  const misfit = tool && (await deps.executor.misfits(tool, args))
  if (misfit) throw invalid('arguments', misfit)
}
