/** A person's word on a tool call that waits: checked, then written where whoever resumes the turn reads it. */
import { exposedName } from '../chat/names.ts'
import { BatonError, invalid } from '../errors.ts'
import type { Caller, Decision } from '../ports.ts'
import { EVERYONE, type Execution, type Turn } from '../store/store.ts'
import type { DeclaredTool } from '../tools/execute.ts'
import { redactJson, redactText } from '../tools/redact.ts'
import { renameBack } from '../tools/schema/adapt.ts'
import type { EngineDeps } from './deps.ts'
import { TOOL_GONE } from './fate.ts'

/** Throws tool_call_not_found, not_awaiting, and invalid_request for edited arguments that do not fit. */
export async function recordDecision(
  deps: EngineDeps,
  caller: Caller,
  turn: Turn,
  call: string,
  given: Decision,
): Promise<void> {
  const { store, sealed } = deps
  const row = (await store.executions.ofTurn(turn.id)).find((one) => one.call_id === call)
  if (!row) throw new BatonError('tool_call_not_found', `The turn has no tool call ${call}.`)
  const edited = given.arguments && (await fitting(deps, turn, row, given.arguments))
  const { decision, reason = null } = given
  const answer = await store.executions.decide(caller, turn.id, call, {
    decision,
    // The ledger holds it, and the model is told what the ledger holds.
    reason: reason === null ? null : await redactText(reason),
    sealed_arguments: edited ? sealed.seal(edited, row.id) : null,
    ...(edited ? { arguments: await redactJson(edited) } : {}),
    by: caller.key_id ?? caller.owner,
  })
  if (answer === 'decided') return
  // Whoever decided may have lost the answer, and reads here what counts.
  throw new BatonError('not_awaiting', `Tool call ${call} does not wait for an approval.`, {
    ...(row.approval ? { details: { decision: row.approval.decision } } : {}),
  })
}

/**
 * Marks the calls that wait for a person and whose tools are gone as expired; whoever resumes the turn settles
 * them. True: there were any.
 */
export async function expireRemoved(
  { store }: Pick<EngineDeps, 'store'>,
  turn: string,
  removed: readonly string[],
): Promise<boolean> {
  if (removed.length === 0) return false
  const rows = await store.executions.ofTurn(turn)
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

/**
 * The arguments as the tool's server names them. A tool that is gone since has no schema to hold them against: the
 * call will be settled in words.
 */
async function fitting(
  deps: EngineDeps,
  turn: Turn,
  row: Execution,
  args: Record<string, unknown>,
): Promise<Record<string, unknown>> {
  const declared = await declaredTool(deps, turn, row.tool)
  if (!declared) return args
  const misfit = await deps.executor.misfits(declared, args)
  if (misfit) throw invalid('arguments', misfit)
  return renameBack(args, declared.rename)
}

/** The tool as the turn's model was given it; under its server's own names where no credential is left. */
async function declaredTool(deps: EngineDeps, turn: Turn, name: string): Promise<DeclaredTool | undefined> {
  const session = await deps.store.sessions.ofTurn(turn.id)
  const registry = await deps.tools.newest(turn.session_id)
  const tool = registry.tools.find((one) => one.canonical_name === name)
  if (!session || !tool) return undefined
  const provider = turn.provider ?? session.provider
  const credential = await deps.credentials.resolve(session, provider).catch(() => null)
  if (!credential) return { tool, rename: null }
  const deployment = deps.deploymentFor(provider, credential)
  return deps.tools.overlay(registry, deployment).byExposed.get(exposedName(name)) ?? { tool, rename: null }
}
