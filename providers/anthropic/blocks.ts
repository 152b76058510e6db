/**
 * What each kind of content block becomes, delta by delta (wire/anthropic.md 6). Unknown kinds and deltas are skipped:
 * the vendor adds some at will.
 */
import type { ModelEvent } from '../../src/chat/event.ts'
import { type AssistantPart, parseArguments } from '../../src/chat/message.ts'
import type { ParseContext } from '../../src/provider.ts'
import { argumentsJson, type Json, object, string } from '../json.ts'
import { familyOf } from './capabilities.ts'
import { redacted, signed } from './opaque.ts'

/** A content block while it is open. */
export interface Block {
  /** Events to emit as soon as it opens */
  opening?: ModelEvent[]
  delta(delta: Json): ModelEvent[]
  /** The part that the block became; null: it was cut before it held anything. */
  part(): AssistantPart | null
}

type Opener = (block: Json, context: ParseContext, index: number) => Block

const OPENERS = new Map<string, Opener>([
  ['text', openText],
  ['thinking', openThinking],
  ['redacted_thinking', openRedacted],
  ['tool_use', openToolUse],
])

/** Opens a block of this kind; `index`: of the part that it becomes. */
export const openBlock = (type: string, ...given: Parameters<Opener>): Block =>
  (OPENERS.get(type) ?? openOther)(...given)

function openText(block: Json, { provenance }: ParseContext, index: number): Block {
  let text = string(block.text) ?? ''
  return {
    opening: text === '' ? [] : [{ type: 'text.delta', index, text }],
    delta(delta) {
      const more = string(delta.text) ?? ''
      text += more
      return more === '' ? [] : [{ type: 'text.delta', index, text: more }]
    },
    part: () => (text === '' ? null : { type: 'text', text, provenance: provenance() }),
  }
}

/**
 * Its text may stay empty while its signature still has to go back (wire/anthropic.md 3.3, `display`). Some
 * vendors' models sign nothing, and yet refuse a tool turn whose thinking is missing (lsdefine/GenericAgent#357: MiMo;
 * can1357/oh-my-pi#908: DeepSeek and GLM). Of any other model, thinking goes back only with a signature.
 */
function openThinking(block: Json, { provenance }: ParseContext, index: number): Block {
  let text = string(block.thinking) ?? ''
  let signature = string(block.signature) ?? ''
  return {
    opening: text === '' ? [] : [{ type: 'reasoning.delta', index, text }],
    delta(delta) {
      signature += string(delta.signature) ?? ''
      const more = string(delta.thinking) ?? ''
      text += more
      return more === '' ? [] : [{ type: 'reasoning.delta', index, text: more }]
    },
    part() {
      if (text === '' && signature === '') return null
      const goesBack = signature !== '' || !familyOf(provenance().model).signsThinking
      return { type: 'reasoning', text, provenance: provenance(goesBack ? signed(signature) : undefined) }
    },
  }
}

/** The block comes whole when it opens. Without its data there is nothing to give back. */
function openRedacted(block: Json, { provenance }: ParseContext): Block {
  const data = string(block.data)
  return {
    delta: () => [],
    part: () =>
      data === undefined ? null : { type: 'reasoning', text: '', provenance: provenance(redacted(data)) },
  }
}

function openToolUse(block: Json, context: ParseContext, index: number): Block {
  const call_id = context.callId(string(block.id))
  const name = context.toolName(string(block.name) ?? '')
  const head = { type: 'tool_call' as const, call_id, name }
  const shown = (arguments_delta: string): ModelEvent => ({
    type: 'tool_call.delta',
    index,
    call_id,
    name,
    arguments_delta,
  })
  // `input` is a placeholder as a rule; some proxies send all of it here and no deltas.
  const given = object(block.input)
  let json = ''
  return {
    opening: [shown('')],
    delta(delta) {
      const more = string(delta.partial_json) ?? ''
      json += more
      return more === '' ? [] : [shown(more)]
    },
    part() {
      const text = json.trim() === '' ? argumentsJson(given) : json
      return { ...head, ...parseArguments(text), provenance: context.provenance() }
    },
  }
}

/** Server tools' blocks and those not known: Baton declares no server tool and has no part for them. */
const openOther: Opener = () => ({ delta: () => [], part: () => null })
