/** The little that a client of Baton needs: JSON requests, and a turn read as server-sent events. */
import { setTimeout as sleep } from 'node:timers/promises'
import { createDecoder } from '../src/sse.ts'

// biome-ignore lint/suspicious/noExplicitAny: a demo's view of JSON answers; the contract is api.md's
type Json = any

export function createClient(url: string) {
  /** Sends the request, and sends it again after the time that a busy gateway names, ten times at most. */
  async function send(method: string, path: string, body?: unknown, tries = 10): Promise<Response> {
    const response = await fetch(url + path, {
      method,
      ...(body === undefined
        ? {}
        : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
    })
    if (response.ok) return response
    const text = await response.text()
    const wait = response.headers.get('retry-after')
    if (response.status !== 503 || wait === null || tries <= 1) {
      throw new Error(`${method} ${path}: ${response.status} ${text}`)
    }
    await sleep(Number(wait) * 1000)
    return await send(method, path, body, tries - 1)
  }

  async function request(method: string, path: string, body?: unknown): Promise<Json> {
    const text = await (await send(method, path, body)).text()
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
    const { body } = await send('POST', `/v1/sessions/${session}/turns`, { input })
    if (!body) throw new Error('a turn without a stream')
    let answer = ''
    let thought = ''
    const take = async (event: Json) => {
      if (event.type === 'reasoning.delta') thought += event.text
      else if (thought !== '') {
        say(`model > thinks: ${thought.replaceAll(/\s+/g, ' ')}`)
        thought = ''
      }
      const line = LINES[event.type]?.(event)
      if (line) say(line)
      await onEvent(event.type)
      if (event.type === 'message' && event.message.role === 'assistant') answer = textOf(event.message)
      if (event.type === 'turn.failed') throw new Error(`turn failed: ${JSON.stringify(event.error)}`)
    }
    const events: Json[] = []
    const decoder = createDecoder(({ data }) => events.push(JSON.parse(data)))
    const utf8 = new TextDecoder()
    for await (const chunk of body) {
      decoder.push(utf8.decode(chunk, { stream: true }))
      for (const event of events.splice(0)) await take(event)
    }
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

/** The events that are printed as a line; all others are not. */
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
