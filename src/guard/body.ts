/** Caps the answers of strangers at a number of bytes. */

/** A body, or one event of a stream, was larger than the cap; the rest is not read. */
export class BodyTooLargeError extends Error {
  override name = 'BodyTooLargeError'
}

/** Cuts a body (of an event stream: one event) at a number of bytes; the reader gets a BodyTooLargeError. */
export function capBody(response: Response, maxBytes: number, onExceeded?: () => void): Response {
  if (!response.body || maxBytes === Number.POSITIVE_INFINITY) return response
  const perEvent = isEventStream(response)
  let bytes = 0
  let last = 0
  const body = response.body.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        const boundary = perEvent ? afterLastBlankLine(chunk, last) : -1
        last = chunk.at(-1) ?? last
        bytes = boundary < 0 ? bytes + chunk.length : chunk.length - boundary
        if (bytes > maxBytes) {
          onExceeded?.()
          throw new BodyTooLargeError(`The answer is larger than ${maxBytes} bytes.`)
        }
        controller.enqueue(chunk)
      },
    }),
  )
  const { status, statusText, headers } = response
  return new Response(body, { status, statusText, headers: [...headers] })
}

/** Media types are written in any case (RFC 9110 8.3.1). */
export const isEventStream = ({ headers }: Response): boolean =>
  /^text\/event-stream\b/i.test(headers.get('content-type') ?? '')

const [LF, CR] = [10, 13]

/**
 * Index right after the last empty line, where an event ends (WHATWG HTML 9.2); -1 without one. The LF of a CR LF may
 * follow.
 */
function afterLastBlankLine(chunk: Uint8Array, before: number): number {
  for (let at = chunk.length - 1; at >= 0; at--) {
    const end = chunk[at]
    if (end !== LF && end !== CR) continue
    const previous = chunk[at - 1] ?? before
    // CR LF is one end of a line.
    if (previous === LF || (previous === CR && end === CR)) return at + 1
  }
  return -1
}
