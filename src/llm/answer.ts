/** A streamed answer while it is read: bytes → text → frames → model events, one network read at a time. */
import { StringDecoder } from 'node:string_decoder'
import type { ModelEvent } from '../chat/event.ts'
import { BatonError } from '../errors.ts'
import type { ModelParser, UpstreamFailure } from '../provider.ts'
import { createDecoder } from '../sse.ts'
import type { Exchange, ResponseHead } from './exchange.ts'
import type { Scrub } from './scrub.ts'

export interface Answer {
  /**
   * The events of what has arrived, never an empty list; null after the end. Throws the adapter's
   * BatonError, `upstream_disconnected` for an answer that is cut, or what ended the exchange.
   */
  next(): Promise<ModelEvent[] | null>
  abort(reason: unknown): void
}

/** What may come in place of a stream is worth this many characters to `classify`. */
const STRAY_TEXT = 64 << 10

export function createAnswer(
  exchange: Exchange,
  head: ResponseHead,
  parser: ModelParser,
  reading: { classify(failure: UpstreamFailure): BatonError; scrub: Scrub },
): Answer {
  const utf8 = new StringDecoder('utf8')
  let events: ModelEvent[] = []
  let failure: unknown
  let isOver = false
  let sawFrame = false
  let stray = ''
  const take = () => {
    const taken = events
    events = []
    return taken
  }
  const guard = (produce: () => ModelEvent[]) => {
    if (isOver) return
    try {
      for (const event of produce()) events.push(event)
      // Whatever stands behind the finish is padding (`[DONE]`, a last ping): the answer is whole.
      if (events.at(-1)?.type === 'finish') {
        isOver = true
        exchange.drain()
      }
    } catch (thrown) {
      // Events of earlier frames in the same read are still delivered; then this is thrown.
      isOver = true
      failure = thrown instanceof BatonError ? reading.scrub.error(thrown) : thrown
      exchange.abort(failure)
    }
  }
  const frames = createDecoder((frame) => {
    sawFrame = true
    guard(() => parser.push(frame))
  })
  const feed = (text: string) => {
    if (!sawFrame && stray.length < STRAY_TEXT) stray += text
    frames.push(text)
    if (sawFrame) stray = ''
  }
  const end = () => {
    feed(utf8.end())
    frames.end()
    // A bare JSON error under the name of a stream: wire/gemini.md 6.1.
    const words = stray.trim()
    if (!sawFrame && words !== '') {
      guard(() => {
        throw reading.classify({ ...head, body: words })
      })
    }
    guard(() => parser.end())
    isOver = true
  }
  return {
    async next() {
      while (events.length === 0) {
        if (failure !== undefined) throw failure
        if (isOver) return null
        const bytes = await exchange.read()
        if (bytes) feed(utf8.write(bytes))
        else end()
      }
      return take()
    },
    abort: (reason) => exchange.abort(reason),
  }
}
