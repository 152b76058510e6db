/** The little that a client of Baton needs: JSON requests, and a turn read as server-sent events. */
import { createDecoder } from '../src/sse.ts'

// biome-ignore lint/suspicious/noExplicitAny: a demo's view of JSON answers; the contract is api.md's
type Json = any

export function createClient(url: string) {
  async function request(method: string, path: string, body?: unknown): Promise<Json> {
    const response = await fetch(url + path, {
      method,
      ...(body === undefined
        ? {}
        : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
    })
    const text = await response.text()
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
    return text === '' ? null : JSON.parse(text)
  }

  /** Streams one turn, prints what happens, and returns the text of its last answer. */
  async function turn(
    session: string,
    input: string,
    say: (line: string) => void,
    onEvent: (type: string) => Promise<void> | void = () => {},
  ): Promise<string> {
    say(`you   > ${input.replaceAll('\n', ' ⏎ ')}`)
    const response = await fetch(`${url}/v1/sessions/${session}/turns`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ input }),
    })
    if (!response.ok || !response.body) throw new Error(`turn: ${response.status} ${await response.text()}`)
    let answer = ''
    const work: Promise<void>[] = []
    const decoder = createDecoder(({ data }) => {
      const event: Json = JSON.parse(data)
      work.push(Promise.resolve(onEvent(event.type)))
      const line = LINES[event.type]?.(event)
      if (line) say(line)
      if (event.type === 'message' && event.message.role === 'assistant') answer = textOf(event.message)
      if (event.type === 'turn.failed') throw new Error(`turn failed: ${JSON.stringify(event.error)}`)
    })
    const utf8 = new TextDecoder()
    for await (const chunk of response.body) decoder.push(utf8.decode(chunk, { stream: true }))
    await Promise.all(work)
    return answer
  }

  return {
    get: (path: string) => request('GET', path),
    post: (path: string, body: unknown) => request('POST', path, body),
    patch: (path: string, body: unknown) => request('PATCH', path, body),
    put: (path: string, body: unknown) => request('PUT', path, body),
    turn,
  }
}

const textOf = (message: Json): string =>
  message.parts.map((part: Json) => (part.type === 'text' ? part.text : '')).join('')

/** The events worth a line; the others pass in silence. */
const LINES: Record<string, (event: Json) => string | null> = {
  'step.started': (e) =>
    `      [step ${e.step}: ${e.provider}/${e.model}, ${e.tool_count} tools, revision ${e.tools_revision}]`,
  tool_call: (e) => `model > calls ${e.name}(${JSON.stringify(e.arguments)})`,
  'tool_execution.completed': (e) =>
    `tool  > ${e.outcome} in ${e.duration_ms} ms: ${JSON.stringify(e.content).slice(0, 120)}`,
  message: (e) =>
    e.message.role === 'assistant' && textOf(e.message) ? `model > ${textOf(e.message).slice(0, 200)}` : null,
  'step.discarded': (e) => `      [step discarded: ${e.reason}]`,
  'turn.restarted': (e) => `      [turn restarted: attempt ${e.attempt}, tools revision ${e.tools_revision}]`,
  'turn.completed': (e) =>
    `      [turn completed: ${e.finish_reason}, ${e.usage.input_tokens} + ${e.usage.output_tokens} tokens]`,
}
