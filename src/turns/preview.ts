/** `/render`: exactly what a turn would send now, and nothing sent (api.md section 4). */
import { afterEdits, applyEdits } from '../chat/edits.ts'
import type { MessageInput, ToolResultPart } from '../chat/message.ts'
import { noSession } from '../errors.ts'
import type { Caller, Rendered, RenderRequest } from '../ports.ts'
import type { EngineDeps } from './deps.ts'
import { notMade } from './fate.ts'
import { assertModel } from './opening.ts'
import { prepare } from './prepare.ts'

/** Throws session_not_found, no_credential, credential_needs_reauth, and what applyEdits throws. */
export async function renderPreview(
  deps: EngineDeps,
  caller: Caller,
  id: string,
  request: RenderRequest,
): Promise<Rendered> {
  const session = await deps.store.sessions.get(caller, id)
  if (!session) throw noSession(id)
  assertModel(session, request)
  const provider = request.provider ?? session.provider
  // This may wait for servers; the rest is read after the wait.
  const registry = await deps.tools.present(id)
  // Before the messages: a step that is committed between the two would show its results without their calls.
  const results = await openResults(deps, session.active_turn_id)
  const [credential, messages] = await Promise.all([
    deps.credentials.resolve(session, provider),
    deps.store.messages.after(id, 0),
  ])
  const model = request.model ?? session.model
  const input: MessageInput[] = request.input.length > 0 ? [{ role: 'user', parts: request.input }] : []
  const edited = applyEdits(messages, request.context)
  const history = [...edited, ...afterEdits(messages, edited, results), ...input]
  const prepared = await prepare(deps, {
    session,
    provider,
    model,
    credential,
    history,
    stored: messages,
    registry,
    refused: deps.llm.refused.known(id, { provider, model, credential_id: credential.facts.id }, history),
    followUp: false,
  })
  const preview = deps.llm.preview(prepared.deployment, prepared.request)
  const undeclared = prepared.overlay.undeclared.map(
    ({ canonical_name, reason }) => `${canonical_name}: ${reason}`,
  )
  return {
    provider,
    ...preview,
    tools_revision: prepared.overlay.revision,
    notes: [...new Set([...prepared.notes, ...preview.notes]), ...undeclared],
  }
}

/**
 * What a turn that interrupts this one would tell of the calls that have no message with their results yet. A call that
 * runs has none: repair says that nothing is known of it.
 */
async function openResults({ store }: EngineDeps, turn: string | null): Promise<MessageInput[]> {
  const rows = turn === null ? [] : await store.executions.ofTurn(turn, 'told')
  const parts = rows.flatMap(({ call_id, tool, state, approval, result }): ToolResultPart[] => {
    if (result) return [result]
    if (state !== 'awaiting_approval') return []
    const { outcome, text } = notMade(approval)
    const content = [{ type: 'text', text } as const]
    return [{ type: 'tool_result', call_id, name: tool, content, is_error: true, outcome }]
  })
  return parts.length === 0 ? [] : [{ role: 'tool', parts }]
}
