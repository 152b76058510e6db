/**
 * Which form of thinking a request asks for (wire/anthropic.md 3.3): adaptive with an effort, a budget
 * for the 4.5 generation, or none. Pure data in, the fields of the body out.
 */
import type { MessageInput } from '../../src/chat/message.ts'
import type { Effort, ModelRequest } from '../../src/provider.ts'
import { EFFORTS, type Family } from './capabilities.ts'
import { thinkingBlock } from './opaque.ts'
import type { WireEffort, WireThinking } from './wire.ts'

export interface Thinking {
  thinking?: WireThinking
  effort?: WireEffort
  /**
   * Thinking blocks may stay in the history. With thinking off the vendor refuses them in an open tool turn ("When
   * thinking is disabled, an assistant message in the final position cannot contain thinking"), and elsewhere they are
   * of no use.
   */
  replay: boolean
}

/** The form nearest to the requested effort that the family takes, with a note if it is another effort. */
export function planThinking(
  request: ModelRequest,
  family: Family,
  maxTokens: number,
  notes: string[],
): Thinking {
  const effort = request.settings.reasoning?.effort
  const accepts = (type: string) => family.thinking.includes(type)
  if (effort === 'none') {
    if (accepts('disabled')) return { thinking: { type: 'disabled' }, replay: false }
    // Texts between tool calls still arrive as signed thinking blocks and go back as such.
    if (accepts('between_tools')) return { thinking: { type: 'between_tools' }, replay: true }
    if (!family.thinksUnasked) {
      notes.push('reasoning.effort: "none" was left out, this model is not known to think unasked')
      return unasked(family)
    }
    if (accepts('adaptive'))
      notes.push('reasoning.effort: this model always thinks; "none" was sent as "low"')
  }
  if (accepts('adaptive')) return adaptive(effort, family, notes)
  if (effort === undefined) return unasked(family)
  if (effort !== 'none' && accepts('enabled')) return budget(effort, request, maxTokens, notes)
  notes.push('reasoning.effort: not accepted by this model')
  return unasked(family)
}

/**
 * The request says nothing of thinking. A model that may think all the same gets its thinking back: DeepSeek's refuse a
 * tool turn without it (omnimind-ai/OmniBot#307).
 */
const unasked = ({ thinksUnasked }: Family): Thinking => ({ replay: thinksUnasked === null })

function adaptive(effort: Effort | undefined, family: Family, notes: string[]): Thinking {
  if (effort === undefined && !family.thinksUnasked) return unasked(family)
  const wire = effort && nearestEffort(effort, family.efforts, notes)
  return {
    thinking: {
      type: 'adaptive',
      ...(family.display ? { display: 'summarized' as const } : {}),
      // Repair sends only fitting blocks back, but we cannot be sure what the vendor takes for the prefix.
      ...(family.dropsUnbound ? { block_binding: { prefix_mismatch_behavior: 'drop_block' as const } } : {}),
    },
    ...(wire ? { effort: wire } : {}),
    replay: true,
  }
}

/** The requested effort, or the next lower one that the model takes. */
function nearestEffort(asked: Effort, accepted: readonly string[], notes: string[]): WireEffort | undefined {
  const wanted = asked === 'none' || asked === 'minimal' ? 'low' : asked
  const found = EFFORTS.slice(0, EFFORTS.indexOf(wanted) + 1).findLast((effort) => accepted.includes(effort))
  if (!found) notes.push('reasoning.effort: not accepted by this model')
  else if (found !== asked && asked !== 'none')
    notes.push(`reasoning.effort: "${asked}" was sent as "${found}"`)
  return found
}

/** Tokens to think with; the API's least is 1,024. */
const BUDGETS: Readonly<Record<Exclude<Effort, 'none'>, number>> = {
  minimal: 1024,
  low: 4096,
  medium: 8192,
  high: 16_384,
  xhigh: 32_768,
  max: 49_152,
}

function budget(
  effort: Exclude<Effort, 'none'>,
  request: ModelRequest,
  maxTokens: number,
  notes: string[],
): Thinking {
  const off: Thinking = { thinking: { type: 'disabled' }, replay: false }
  if (maxTokens <= BUDGETS.minimal) {
    notes.push('reasoning.effort: left out, max_output_tokens must be above 1024 for this model to think')
    return off
  }
  if (!openTurnThinks(request.messages)) {
    notes.push('reasoning.effort: left out for this step, its tool turn began without thinking of this model')
    return off
  }
  // Half is left for the answer: the budget counts towards max_tokens.
  const tokens = Math.max(BUDGETS.minimal, Math.min(BUDGETS[effort], Math.floor(maxTokens / 2)))
  return { thinking: { type: 'enabled', budget_tokens: tokens }, replay: true }
}

/**
 * With budgets, a tool turn that is still open must have begun with a thinking block, else the request
 * is refused (wire/anthropic.md 4.4); later steps of it may lack one (seen in BerriAI/litellm#18926).
 */
function openTurnThinks(messages: readonly MessageInput[]): boolean {
  let first: MessageInput | undefined
  let answered = false
  for (const message of [...messages].reverse()) {
    if (message.role === 'tool') answered = true
    if (message.role !== 'assistant') continue
    if (!answered) break
    first = message
    answered = false
  }
  if (!first) return true
  const [part] = first.parts
  return part?.type === 'reasoning' && thinkingBlock(part).length > 0
}
