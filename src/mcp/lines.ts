/**
 * Reads newline-delimited JSON from a server's process, which may also write chatter, floods, lines of any length, and
 * answers that are nearly JSON.
 */
import type { Readable } from 'node:stream'
import { type JSONRPCMessage, parseJSONRPCMessage, type Transport } from '@modelcontextprotocol/client'
import { repairMessage } from './answer.ts'
import type { McpErrorKind } from './contract.ts'

/** Who hears what is read; closed if a line above the cap may hold the answer to any request. */
export interface LineReader extends Pick<Transport, 'onmessage' | 'close'> {
  /** Called with the id of a request whose answer came but cannot be used, and why. */
  onrefused?: (id: number, kind: McpErrorKind, why: string) => void
}

/** Most parts of a line that are kept apart: each costs a hundred bytes, and a program may write single ones. */
const MOST_PARTS = 1_000

/** Lines that are not JSON are a program's chatter and skipped; lines above the cap, too. */
export function readLines(stdout: Readable, reader: LineReader, maxBytes: number): void {
  let parts: Buffer[] = []
  let size = 0
  const add = (part: Buffer): void => {
    size += part.length
    parts.push(part)
    if (size > maxBytes) parts = [headOf(parts), tailOf(parts)]
    else if (parts.length === MOST_PARTS) parts = [Buffer.concat(parts)]
  }
  stdout.on('data', (chunk: Buffer) => {
    // Otherwise two megabytes are read in one pass of the event loop: a flood of short lines must not hold up everybody
    // else.
    if (chunk.includes(10)) {
      stdout.pause()
      setImmediate(() => stdout.resume())
    }
    let from = 0
    for (let at = chunk.indexOf(10); at >= 0; at = chunk.indexOf(10, from)) {
      add(chunk.subarray(from, at))
      from = at + 1
      if (size > maxBytes) dropLine(parts, reader, maxBytes)
      else readLine(Buffer.concat(parts), reader)
      parts = []
      size = 0
    }
    add(chunk.subarray(from))
  })
  // The stream closes after it.
  stdout.on('error', () => {})
}

/** Bytes kept of each end of a line above the cap: they tell which request it answers. */
const ENDS = 256
const headOf = (parts: Buffer[]): Buffer => Buffer.from(Buffer.concat(parts).subarray(0, ENDS))
const tailOf = (parts: Buffer[]): Buffer => Buffer.from(Buffer.concat(parts).subarray(-ENDS))

/** Some programs begin their output, or each line, with it (typescript-sdk#2775). */
const BYTE_ORDER_MARK = Buffer.from('\ufeff')

/** How a notification begins, or a question of the server: neither answers a request. */
const UNASKED = /^\s*\{[^{]*"method"/

function readLine(whole: Buffer, reader: LineReader): void {
  const isMarked = whole.subarray(0, BYTE_ORDER_MARK.length).equals(BYTE_ORDER_MARK)
  const line = isMarked ? whole.subarray(BYTE_ORDER_MARK.length) : whole
  // A line that does not begin with `{` is chatter: letting a parser find that out costs many times as much.
  if (line.find((byte) => byte > 32) !== 123) return
  const text = line.toString('utf8')
  let json: Record<string, unknown> | undefined
  let message: JSONRPCMessage
  try {
    json = JSON.parse(text)
    // So is any other JSON, such as a log's: the SDK takes fifty times as long to refuse it, two seconds for a pipe full.
    if (json?.jsonrpc !== '2.0') return
    message = parseJSONRPCMessage(repairMessage(json))
  } catch {
    // This is an answer, though a broken one: its request would wait for a better one that never comes. Python writes
    // NaN, which JSON has not. A question has an id of the server's own, and a log of requests has theirs.
    const hasMethod = json ? 'method' in json : UNASKED.test(text.slice(0, ENDS))
    const isAnswer = !hasMethod && text.includes('"jsonrpc"')
    const id = json ? json.id : idIn(text, text)
    if (isAnswer && typeof id === 'number')
      reader.onrefused?.(id, 'protocol', "The server's answer is not valid JSON-RPC.")
    return
  }
  reader.onmessage?.(message)
}

/** Only the request behind an oversized answer fails, so that a stateful server keeps its state. */
function dropLine(parts: Buffer[], reader: LineReader, maxBytes: number): void {
  const [head = '', tail = ''] = parts.map(String)
  if (UNASKED.test(head)) return
  const id = idIn(head, tail)
  if (id === undefined) void reader.close()
  else reader.onrefused?.(id, 'too_large', `The server's answer is larger than ${maxBytes} bytes.`)
}

/**
 * The id of the request that a line answers, by its start and its end; undefined if neither has one. Some servers give it
 * back as text.
 */
function idIn(head: string, tail: string): number | undefined {
  const atStart = /^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*"?(\d+)/.exec(head)
  // At the end of the line one brace closes the message, so this id is the message's own. Servers made with the C# SDK
  // write the members of a base class last (its JsonRpcMessage.cs).
  const atEnd = /"id"\s*:\s*"?(\d+)"?\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$/.exec(tail)
  const id = atStart?.[1] ?? atEnd?.[1]
  return id === undefined ? undefined : Number(id)
}
