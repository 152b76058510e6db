/** The SSE wire format, both ways; no sockets. Decoding is eventsource-parser's (WHATWG HTML 9.2). */
import { createParser } from 'eventsource-parser'
import { BatonError } from './errors.ts'
import { jsonEscape } from './text.ts'

/**
 * Most lines of one event, which usually has two to four. Each line costs the parser a hundred bytes until the event
 * ends, however short it is.
 */
const MOST_LINES = 100_000

/** One decoded event. `event` is undefined when the stream named none. */
export interface SseFrame {
  event: string | undefined
  data: string
  id: string | undefined
}

/**
 * Takes text chunks and returns whole frames. `end()` delivers a last frame that lacks its blank line. `onRetry` gets
 * the reconnection time in milliseconds that a `retry:` field sets, `onStray` a line that is not a field. `push` throws
 * `upstream_rejected` for an event of more than MOST_LINES lines.
 */
export function createDecoder(
  onFrame: (frame: SseFrame) => void,
  { onRetry, onStray }: { onRetry?: (milliseconds: number) => void; onStray?: (line: string) => void } = {},
): { push(text: string): void; end(): void } {
  const parser = createParser({
    onEvent: (message) => onFrame({ event: message.event, data: message.data, id: message.id }),
    ...(onRetry && { onRetry }),
    ...(onStray && { onError: ({ line }) => line !== undefined && onStray(line) }),
  })
  let isStart = true
  let isAfterCr = false
  let isAfterLine = false
  /** Of the event that has not ended */
  let lines = 0
  const count = (text: string) => {
    const end = text.lastIndexOf('\n\n')
    const start = end >= 0 ? end + 2 : isAfterLine && text.startsWith('\n') ? 1 : 0
    if (start > 0) lines = 0
    for (let at = text.indexOf('\n', start); at >= 0; at = text.indexOf('\n', at + 1)) lines++
    if (lines > MOST_LINES)
      throw new BatonError('upstream_rejected', `An event of the stream has more than ${MOST_LINES} lines.`)
    isAfterLine = text.endsWith('\n')
  }
  return {
    push(text) {
      if (text === '') return
      // The parser knows a byte order mark as three bytes only, not as the character it decodes to.
      const isMarked = isStart && text.charCodeAt(0) === 0xfeff
      const isRest = isAfterCr && text.charCodeAt(0) === 0x0a
      const rest = isMarked || isRest ? text.slice(1) : text
      isStart = false
      isAfterCr = text.endsWith('\r')
      // After each CR the parser searches all that it was fed for an LF: a long text of CRs would take quadratic time.
      const plain = rest.includes('\r') ? rest.replace(/\r\n?/g, '\n') : rest
      if (plain === '') return
      parser.feed(plain)
      count(plain)
    },
    // A stream cut after its last data line still holds a whole event (seen on Gemini: wire/gemini.md 6.1).
    end: () => parser.feed('\n\n'),
  }
}

/** Line breaks that JSON leaves in its texts. They end no line of SSE, but do for many readers (httpx `iter_lines`). */
const BREAKS = /[\u0085\u2028\u2029]/g

/** Encodes one event. `data` is JSON on one line. */
export const encodeEvent = (event: string, data: string, id: string): string =>
  `id: ${id}\nevent: ${event}\ndata: ${data.replace(BREAKS, jsonEscape)}\n\n`

export const encodeComment = (text: string): string => `: ${text}\n\n`
