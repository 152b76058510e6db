/** Deltas of whole characters, however the vendor cut its text. */
import type { ModelEvent } from '../chat/event.ts'

type Delta = Extract<ModelEvent, { type: `${string}.delta` }>

/**
 * Passes events on; half a character at the end of a delta waits for the next delta. Services in JavaScript cut texts
 * between the two units of an emoji (openclaw/openclaw#115536, elizaOS/eliza#30904), and clients write or decode each
 * delta by itself: Python's `print` fails on a half, and Go and terminals make U+FFFD of it.
 */
export function wholeCharacters(take: (event: ModelEvent) => void): (event: ModelEvent) => void {
  let held: Delta | null = null
  return (event) => {
    // Gemini counts in each of its chunks, and so between any two deltas.
    if (event.type === 'usage') return take(event)
    const before = held
    held = null
    const isNext = event.type === before?.type && event.index === before.index
    if (before && !isNext) take(before)
    if (!isDelta(event)) return take(event)
    const whole = before && isNext ? withText(event, textOf(before) + textOf(event)) : event
    const text = textOf(whole)
    if (!isFirstHalf(text.charCodeAt(text.length - 1))) return take(whole)
    held = withText(whole, text.slice(-1))
    if (text.length > 1) take(withText(whole, text.slice(0, -1)))
  }
}

const isFirstHalf = (unit: number): boolean => unit >= 0xd800 && unit <= 0xdbff

const isDelta = (event: ModelEvent): event is Delta => event.type.endsWith('.delta')

const textOf = (delta: Delta): string =>
  delta.type === 'tool_call.delta' ? delta.arguments_delta : delta.text

const withText = (delta: Delta, text: string): Delta =>
  delta.type === 'tool_call.delta' ? { ...delta, arguments_delta: text } : { ...delta, text }
