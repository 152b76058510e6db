/**
 * What must go back to OpenAI unchanged, packed into a part's `provenance.opaque`: encrypted reasoning with the
 * segments of its summary, and the phase of a message (wire/openai.md 4).
 */
import { parseRecord } from '../../src/chat/json.ts'
import type { ReasoningPart, TextPart } from '../../src/chat/message.ts'
import { list, object, objects, string } from '../json.ts'
import type { InputItem, Phase } from './wire.ts'

/** Stands between the segments of a summary when they are shown as one text. */
export const SEGMENT_BREAK = '\n\n'

/** The segments themselves are in the part's text; only their lengths are kept with the token. */
export function packReasoning(encrypted: string, segments: readonly string[]): string {
  return JSON.stringify({ encrypted_content: encrypted, segments: segments.map(({ length }) => length) })
}

/** The reasoning item as it came, or null if the part holds no token to send back. */
export function reasoningItem(part: ReasoningPart): Extract<InputItem, { type: 'reasoning' }> | null {
  const packed = parseRecord(part.provenance.opaque ?? '')
  const encrypted = string(packed?.encrypted_content)
  if (encrypted === undefined) return null
  const summary = segmented(part.text, list(packed?.segments).map(Number))
  return {
    type: 'reasoning',
    summary: summary.map((text) => ({ type: 'summary_text', text })),
    encrypted_content: encrypted,
  }
}

/** Cuts the text where its segments met; a text edited since then is one segment. */
function segmented(text: string, lengths: readonly number[]): string[] {
  const breaks = Math.max(0, lengths.length - 1) * SEGMENT_BREAK.length
  const fits = lengths.reduce((sum, length) => sum + length, breaks) === text.length
  if (!fits) return text === '' ? [] : [text]
  let at = 0
  return lengths.map((length) => {
    const segment = text.slice(at, at + length)
    at += length + SEGMENT_BREAK.length
    return segment
  })
}

/** The readable segments of a reasoning item: its summary, or the raw text of an open-weight model. */
export function segmentsOf(item: unknown): string[] {
  const { summary, content } = object(item)
  const textsOf = (pieces: unknown) => objects(pieces).map(({ text }) => string(text) ?? '')
  const segments = textsOf(summary)
  return segments.length > 0 ? segments : textsOf(content)
}

/** The token that keeps a text's phase. */
export const packPhase = (phase: Phase): string => JSON.stringify({ phase })

/** The phase that a text came with; undefined if it had none. */
export function phaseOf({ provenance }: TextPart): Phase | undefined {
  return provenance?.opaque === undefined ? undefined : phase(parseRecord(provenance.opaque)?.phase)
}

/** Undefined for a phase that this code does not know. */
export const phase = (value: unknown): Phase | undefined =>
  value === 'commentary' || value === 'final_answer' ? value : undefined
