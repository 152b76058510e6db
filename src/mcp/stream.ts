/**
 * Repairs the messages in a server's event stream, line by line, before the SDK reads them: for one odd member of an
 * answer, or a missing empty line, the result of a tool that has run would be lost.
 */
import { isAnswer, repairMessage } from './answer.ts'

/**
 * A stream with the same events; each message is repaired (`asked` as in answer.ts), and an answer's event ends with its
 * line.
 */
export function repairStream(asked?: string | number): TransformStream<Uint8Array, Uint8Array> {
  const decoder = new TextDecoder()
  const encoder = new TextEncoder()
  const repairLine = createLineRepair(asked)
  let begun = ''
  let isAfterCr = false
  return new TransformStream({
    transform(chunk, controller) {
      const text = decoder.decode(chunk, { stream: true })
      const rest = isAfterCr && text.startsWith('\n') ? text.slice(1) : text
      if (text !== '') isAfterCr = text.endsWith('\r')
      const [first = '', ...more] = rest.split(/\r\n?|\n/)
      begun += first
      const last = more.pop()
      if (last === undefined) return
      const lines = [begun, ...more]
      begun = last
      controller.enqueue(encoder.encode(lines.map(repairLine).join('')))
    },
    // The standard drops a line without its end. It may be a part of one, but an answer that can be read is whole.
    flush(controller) {
      const line = begun + decoder.decode()
      if (line !== '') controller.enqueue(encoder.encode(repairLine(line)))
    },
  })
}

/** Puts a line's end to each line, and an empty line after an answer. */
function createLineRepair(asked?: string | number): (line: string) => string {
  let isInside = false
  return (line) => {
    const isData = line.startsWith('data:')
    // Some servers send no empty line after an answer, and some of those keep the stream open (vercel/ai#16865).
    const read = isData && !isInside ? messageIn(line.slice('data:'.length), asked) : null
    const isWhole = read !== null && isAnswer(read.message)
    isInside = line !== '' && !isWhole && (isInside || isData)
    return `${read ? `data:${read.json}` : line}${isWhole ? '\n\n' : '\n'}`
  }
}

/** Null if there is no JSON, or one nested more deeply than JSON can be written. */
function messageIn(data: string, asked?: string | number): { message: unknown; json: string } | null {
  try {
    const message: unknown = JSON.parse(data)
    const repaired = repairMessage(message, asked)
    return { message: repaired, json: repaired === message ? data : JSON.stringify(repaired) }
  } catch {
    return null
  }
}
