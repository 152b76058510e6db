/** Streams as frames, the parts and finish of their events, and the error that reading them throws. */
import type { ModelEvent } from '../../src/chat/event.ts'
import { createFold, type Fold } from '../../src/chat/fold.ts'
import type { AssistantPart } from '../../src/chat/message.ts'
import { BatonError } from '../../src/errors.ts'
import { createDecoder, type SseFrame } from '../../src/sse.ts'

/** The frames of a stream that arrives in pieces of this size; without a size, in one piece. */
export function framesOf(stream: string, size = stream.length): SseFrame[] {
  const frames: SseFrame[] = []
  const decoder = createDecoder((frame) => frames.push(frame))
  for (let at = 0; at < stream.length; at += size) decoder.push(stream.slice(at, at + size))
  decoder.end()
  return frames
}

/** Frames of made-up events, as they come from the wire. */
export const framed = (...events: Record<string, unknown>[]): SseFrame[] =>
  events.map((event) => ({ event: String(event.type), data: JSON.stringify(event), id: undefined }))

function folded(events: Iterable<ModelEvent>): Fold {
  const folding = createFold()
  for (const event of events) folding.add(event)
  return folding
}

export const fold = (events: Iterable<ModelEvent>): AssistantPart[] => folded(events).parts()

export const finishOf = (events: Iterable<ModelEvent>) => folded(events).finish()?.reason

export const thrownBy = (run: () => unknown): BatonError | null => {
  try {
    run()
    return null
  } catch (thrown) {
    if (thrown instanceof BatonError) return thrown
    throw thrown
  }
}
