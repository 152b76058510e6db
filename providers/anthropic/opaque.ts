/**
 * A thinking block's token, as it is kept in `provenance.opaque` and put back: which kind of block it
 * was, and its signature or its encrypted data. Blocks go back as they came, or the request is refused
 * (wire/anthropic.md 4.4).
 */
import type { ReasoningPart } from '../../src/chat/message.ts'
import { wellFormedValue } from '../../src/chat/well-formed.ts'
import type { RedactedThinkingBlock, ThinkingBlock } from './wire.ts'

const SIGNED = 'signed:'
const REDACTED = 'redacted:'

/** The token of a readable thinking block; `redacted`: the token of a block that is encrypted whole. */
export const signed = (signature: string): string => SIGNED + signature
export const redacted = (data: string): string => REDACTED + data

/**
 * The block of a reasoning part, in a list. Empty without a token, since the API takes no unsigned thinking, and for a
 * block with a lone surrogate: it cannot be sent as UTF-8, and once repaired it is not what was signed.
 */
export function thinkingBlock(part: ReasoningPart): (ThinkingBlock | RedactedThinkingBlock)[] {
  const block = blockOf(part)
  return block && wellFormedValue(block) === block ? [block] : []
}

function blockOf({ text, provenance }: ReasoningPart): ThinkingBlock | RedactedThinkingBlock | null {
  const opaque = provenance.opaque ?? ''
  if (opaque.startsWith(SIGNED)) {
    return { type: 'thinking', thinking: text, signature: opaque.slice(SIGNED.length) }
  }
  return opaque.startsWith(REDACTED)
    ? { type: 'redacted_thinking', data: opaque.slice(REDACTED.length) }
    : null
}
