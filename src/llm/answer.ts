/**
 * Reads a streamed answer: bytes → text → frames → model events, all in the pass of the event loop that reads the
 * bytes.
 */
import { StringDecoder } from 'node:string_decoder'
import type { ModelEvent } from '../chat/event.ts'
import { soundUsage } from '../chat/message.ts'
import { BatonError } from '../errors.ts'
import type { ModelParser } from '../provider.ts'
import { createDecoder, type SseFrame } from '../sse.ts'
import { wholeCharacters } from './characters.ts'
import type { Exchange } from './exchange.ts'
import type { Scrub } from './scrub.ts'

/** A streamed answer after its head, and how it is read: by the adapter's parser and its view of failures, without the secret. */
export interface Answer {
  exchange: Exchange
  parser: ModelParser
  /** What is thrown for a body that tells of a failure: it is no stream, or the end of one that had begun */
  refused(body: string, begun: boolean): Error
  scrub: Scrub
}

/**
 * Characters of text outside of frames that are kept for `refused`: an error may come as such text, in place of a
 * stream or of its rest.
 */
const STRAY_TEXT = 64 << 10

/** Whether a body says that it is an error, whatever its status is. OpenAI's whole answers say that they are none. */
export const isError = (body: string): boolean => /^\s*[[{].*"error"(?!\s*:\s*null)/s.test(body)

/**
 * Passes the answer's events on as they come and resolves after the last. Throws the adapter's BatonError, what `refused`
 * makes, `upstream_disconnected` for an answer that is cut, or what ended the exchange; earlier events have been passed
 * on by then.
 */
export async function readAnswer(
  { exchange, parser, refused, scrub }: Answer,
  take: (event: ModelEvent) => void,
): Promise<void> {
  const utf8 = new StringDecoder('utf8')
  const pass = wholeCharacters(take)
  let failure: unknown
  let isOver = false
  let sawFrame = false
  let stray = ''
  const guard = (produce: () => ModelEvent[]) => {
    if (isOver) return
    try {
      const events = produce()
      for (const event of events) pass(sound(event, scrub))
      // Whatever comes after the finish is padding (`[DONE]`, a last ping): the answer is whole.
      if (events.at(-1)?.type === 'finish') {
        isOver = true
        exchange.drain()
      }
    } catch (thrown) {
      isOver = true
      failure = thrown instanceof BatonError ? scrub.error(thrown) : thrown
      exchange.abort(failure)
    }
  }
  const onFrame = (frame: SseFrame) => {
    sawFrame = true
    stray = ''
    // No protocol here has empty frames or `[DONE]`, but relays add both to any of them.
    if (frame.data !== '' && frame.data !== '[DONE]') guard(() => pushed(parser, frame, scrub))
  }
  const onStray = (line: string) => {
    if (stray.length < STRAY_TEXT) stray += `${line.slice(0, STRAY_TEXT)}\n`
  }
  const frames = createDecoder(onFrame, { onStray })
  await exchange.body((piece) =>
    // The decoder throws, too, for an event without end.
    guard(() => {
      frames.push(utf8.write(piece))
      return []
    }),
  )
  frames.end()
  guard(() => {
    try {
      return parser.end()
    } catch (thrown) {
      // A bare JSON error may be sent as if it were a stream, or in place of its rest (wire/gemini.md 6.1).
      const body = stray.trim()
      const isFailure = sawFrame ? isError(body) : body !== ''
      throw isFailure ? refused(body, sawFrame) : thrown
    }
  })
  if (failure !== undefined) throw failure
}

function pushed(parser: ModelParser, frame: SseFrame, scrub: Scrub): ModelEvent[] {
  try {
    return parser.push(frame)
  } catch {
    // An adapter may cut the vendor's words in the middle of the secret, and half of it is not found afterwards.
    // So the secret is taken out of the frame first, and the same failure is read again.
    return parser.push({ ...frame, data: scrub.text(frame.data) })
  }
}

/**
 * The event with the vendor's counts made numbers, and its words cut and without secrets. The model's words stay as
 * they are.
 */
function sound(event: ModelEvent, scrub: Scrub): ModelEvent {
  if (event.type === 'usage') return { ...event, usage: soundUsage(event.usage) }
  if (event.type !== 'finish') return event
  const { invalid_call, refusal } = event
  return {
    ...event,
    ...(invalid_call === undefined ? {} : { invalid_call: scrub.words(invalid_call) }),
    ...(refusal === undefined ? {} : { refusal: scrub.words(refusal) }),
  }
}
