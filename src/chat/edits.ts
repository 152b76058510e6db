/**
 * Per-request context edits (api.md "Turns"): pure list surgery on the history a turn starts from. The guard at the end
 * holds for every provider: no tool call may be separated from its result.
 */
import { BatonError, invalid } from '../errors.ts'
import { canonicalJson } from './json.ts'
import { answeredCalls, type MessageInput, type Part, type Provenance, toolCalls } from './message.ts'

export type ContextEdit =
  | { op: 'insert_before' | 'insert_after' | 'replace_at'; index: number; message: MessageInput }
  | { op: 'delete_at'; index: number }

/**
 * Applies the edits in order. Each index counts in the list that the edit before left; a negative one counts from the
 * end. Throws `invalid_request` for an index out of range, `context_splits_tool_exchange` if the edits separate a call
 * from its result. On an empty list, insert_before 0 and insert_after -1 insert.
 */
export function applyEdits(history: readonly MessageInput[], edits: readonly ContextEdit[]): MessageInput[] {
  const list = [...history]
  if (edits.length === 0) return list
  const fitting = fittingTokens(history.flatMap(({ parts }) => parts))
  edits.forEach((edit, i) => {
    const at = position(edit, list.length, i)
    if (edit.op === 'delete_at') {
      list.splice(at, 1)
      return
    }
    const message = { ...edit.message, parts: edit.message.parts.map(fitting) }
    if (edit.op === 'replace_at') list.splice(at, 1, message)
    else list.splice(edit.op === 'insert_before' ? at : at + 1, 0, message)
  })
  assertWholeExchanges(history, list)
  return list
}

/**
 * What came after the edits, without the results of calls that they took out: a call may have been open when they were
 * accepted, so that its result could not be edited along with it.
 */
export function afterEdits(
  before: readonly MessageInput[],
  edited: readonly MessageInput[],
  since: readonly MessageInput[],
): MessageInput[] {
  const gone = new Set(before.flatMap(toolCalls).map((call) => call.call_id))
  for (const { call_id } of edited.flatMap(toolCalls)) gone.delete(call_id)
  return since.flatMap((message) => {
    if (!answeredCalls(message).some((id) => gone.has(id))) return [message]
    const parts = message.parts.filter((part) => part.type !== 'tool_result' || !gone.has(part.call_id))
    return parts.length === 0 ? [] : [{ ...message, parts }]
  })
}

type Signed = Part & { provenance?: Provenance }

/**
 * Returns a part as it is, or without its token if the token was made for other content: the provider refuses the two
 * together. A token that none of the parts `before` has stays.
 */
export function fittingTokens(before: readonly Signed[]): (part: Signed) => Signed {
  // Contents are kept as texts to look up: any number of parts may carry one token, before and after.
  const contents = new Map<string, Set<string>>()
  for (const part of before) {
    const token = part.provenance?.opaque
    if (token === undefined) continue
    const known = contents.get(token) ?? new Set()
    contents.set(token, known.add(contentOf(part)))
  }
  return (part) => {
    const { provenance } = part
    if (provenance?.opaque === undefined) return part
    const { opaque, ...origin } = provenance
    const fits = contents.get(opaque)?.has(contentOf(part)) ?? true
    return fits ? part : { ...part, provenance: origin }
  }
}

const contentOf = ({ provenance: _, ...content }: Signed): string => canonicalJson(content)

function position(edit: ContextEdit, length: number, i: number): number {
  const at = edit.index < 0 ? length + edit.index : edit.index
  if (length === 0 && edit.op === 'insert_before' && edit.index === 0) return 0
  if (length === 0 && edit.op === 'insert_after' && edit.index === -1) return -1
  if (at >= 0 && at < length) return at
  const param = `context[${i}].index`
  throw invalid(param, `${param} ${edit.index} is outside of the ${length} messages.`)
}

/** Calls and results that were together before must be together after; a history's own gaps are repaired later. */
function assertWholeExchanges(before: readonly MessageInput[], after: readonly MessageInput[]): void {
  const [known, now] = [separated(before), separated(after)]
  // Counted: a history may have given one id to several calls.
  const [split] = [...now].find(([id, count]) => count > (known.get(id) ?? 0)) ?? []
  if (split === undefined) return
  throw new BatonError(
    'context_splits_tool_exchange',
    `The edits separate tool call ${split} from its result; edit or delete both messages together, and insert nothing between them.`,
    { param: 'context', details: { call_id: split } },
  )
}

/** By id: how many calls lack a result in the tool messages right after them, and how many results lack such a call. */
function separated(list: readonly MessageInput[]): Map<string, number> {
  const found = new Map<string, number>()
  const add = (id: string) => found.set(id, (found.get(id) ?? 0) + 1)
  let open = new Set<string>()
  const close = () => open.forEach(add)
  for (const message of list) {
    if (message.role !== 'tool') {
      close()
      open = new Set(toolCalls(message).map((call) => call.call_id))
    }
    for (const part of message.parts) {
      if (part.type === 'tool_result' && !open.delete(part.call_id)) add(part.call_id)
    }
  }
  close()
  return found
}
