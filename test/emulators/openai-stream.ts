/** A scene as a Responses stream, or as the one JSON object of a request without a stream (wire/openai.md 6). */
import { type Beat, pause, type StreamReply } from './http.ts'
import { isObject, type Json } from './json.ts'
import { type Answer, pieces, type SceneItem, type SceneUsage } from './scene.ts'

/** One response to make: the request, the scene to play, and the service's own tokens and ids. */
export interface Play {
  body: Json
  chatgpt: boolean
  scene: Answer
  usage: SceneUsage
  issue(segments: string[]): string
  id(prefix: string): string
  /** Id of the response, which is the same in all events */
  response: string
}

/** The stream of a scene, with the ending that the scene asks for. */
export function streamReply(play: Play, headers: Record<string, string>): StreamReply {
  const { scene } = play
  const ending = typeof scene.ending === 'string' ? END_OF_BODY[scene.ending] : 'end'
  return {
    headers,
    stream: scene.ending === undefined ? allBeats(play) : brokenBeats(play),
    ending,
    ...(scene.chunk === undefined ? {} : { chunk: scene.chunk }),
  }
}

const END_OF_BODY = { close: 'end', cut: 'cut', hang: 'hang' } as const

/** The same response without a stream. It waits for what the scene holds back. */
export async function wholeResponse(play: Play): Promise<Json> {
  let last: Json = {}
  for (const beat of frames(play)) {
    if (typeof beat === 'function') await beat()
    else last = beat
  }
  return isObject(last.response) ? last.response : {}
}

/** Frames are numbered as they are sent; only `codex.*` frames have no number. */
function* allBeats(play: Play): Generator<Beat> {
  let sequence = 0
  for (const frame of frames(play)) {
    if (typeof frame === 'function') yield frame
    else yield encoded(frame, String(frame.type).startsWith('codex.') ? undefined : sequence++)
  }
}

/**
 * The stream without its terminal event, or cut after the scene's number of frames. Then the in-stream error, if any.
 */
function* brokenBeats(play: Play): Generator<Beat> {
  const { after = Number.POSITIVE_INFINITY, ending } = play.scene
  let sent = 0
  for (const beat of allBeats(play)) {
    if (typeof beat === 'string' && (sent++ >= after || TERMINAL.test(beat))) break
    yield beat
  }
  if (typeof ending !== 'object') return
  const { code, message } = ending
  if (/overloaded|slow_down/.test(code)) {
    yield encoded(
      { type: 'error', error: { type: 'service_unavailable_error', code, message, param: null } },
      sent,
    )
  } else {
    const response = { ...envelope(play), status: 'failed', error: { code, message } }
    yield encoded({ type: 'response.failed', response }, sent)
  }
}

const TERMINAL = /^event: response\.(completed|incomplete)\n/

function encoded(frame: Json, sequence?: number): string {
  const data = sequence === undefined ? frame : { ...frame, sequence_number: sequence }
  return `event: ${String(frame.type)}\ndata: ${JSON.stringify(data)}\n\n`
}

type Step = Json | (() => Promise<unknown>)

function* frames(play: Play): Generator<Step> {
  const { scene, chatgpt } = play
  const response = envelope(play)
  if (chatgpt) yield RATE_LIMITS
  yield { type: 'response.created', response }
  yield { type: 'response.in_progress', response }
  if (chatgpt) yield { type: 'keepalive' }
  const items = refusing(scene)
  const output: Json[] = []
  for (const [place, item] of items.entries()) {
    if (item.type === 'wait') {
      yield () => item.until
      continue
    }
    const last = items.slice(place + 1).every(({ type }) => type === 'wait')
    const fate: Fate = {
      status: scene.finish === 'length' && last ? 'incomplete' : 'completed',
      beforeCall: items.slice(place).some(({ type }) => type === 'call'),
    }
    const wire = yield* playItem(play, item, output.length, fate)
    output.push(wire)
  }
  yield ended(play, response, output)
}

/** A refusal is said in a content part of its own kind. */
function refusing(scene: Answer): SceneItem[] {
  if (scene.finish !== 'refusal' || scene.items.some(({ type }) => type === 'text')) return scene.items
  return [...scene.items, { type: 'text', text: "I can't help with that." }]
}

function ended(play: Play, response: Json, output: Json[]): Json {
  const cut = play.scene.finish === 'length'
  const { input_tokens, output_tokens, cached_tokens, reasoning_tokens } = play.usage
  return {
    type: cut ? 'response.incomplete' : 'response.completed',
    response: {
      ...response,
      status: cut ? 'incomplete' : 'completed',
      incomplete_details: cut ? { reason: 'max_output_tokens' } : null,
      // The ChatGPT backend leaves `output` empty even on success (wire/openai.md 6.3).
      output: play.chatgpt ? [] : output,
      ...(play.chatgpt || play.scene.goesOn ? { end_turn: !play.scene.goesOn } : {}),
      usage: {
        input_tokens,
        input_tokens_details: { cached_tokens, cache_write_tokens: 0 },
        output_tokens,
        output_tokens_details: { reasoning_tokens },
        total_tokens: input_tokens + output_tokens,
      },
    },
  }
}

function envelope({ body, chatgpt, response }: Play): Json {
  return {
    id: response,
    object: 'response',
    created_at: 1795183387,
    status: 'in_progress',
    error: null,
    incomplete_details: null,
    instructions: body.instructions ?? null,
    model: body.model,
    output: [],
    parallel_tool_calls: body.parallel_tool_calls ?? true,
    prompt_cache_key: body.prompt_cache_key ?? null,
    reasoning: body.reasoning ?? null,
    store: chatgpt ? false : (body.store ?? true),
    tool_choice: body.tool_choice ?? 'auto',
    tools: body.tools ?? [],
    usage: null,
    metadata: {},
  }
}

const RATE_LIMITS: Json = {
  type: 'codex.rate_limits',
  plan_type: 'plus',
  rate_limits: { allowed: true, limit_reached: false, primary: { used_percent: 31, window_minutes: 300 } },
}

interface Fate {
  status: 'completed' | 'incomplete'
  beforeCall: boolean
}
type Playing = Generator<Step, Json>
type Item<T extends SceneItem['type']> = Extract<SceneItem, { type: T }>

function playItem(
  play: Play,
  item: Exclude<SceneItem, { type: 'wait' }>,
  output_index: number,
  fate: Fate,
): Playing {
  switch (item.type) {
    case 'text':
      return playText(play, item, output_index, fate)
    case 'reasoning':
      return playReasoning(play, item, output_index)
    case 'call':
      return playCall(play, item, output_index, fate)
    default:
      return item satisfies never
  }
}

function* playText(play: Play, { text }: Item<'text'>, output_index: number, fate: Fate): Playing {
  const { status, beforeCall } = fate
  const item_id = play.id('msg')
  const refused = play.scene.finish === 'refusal'
  const type = refused ? 'refusal' : 'output_text'
  const field = refused ? 'refusal' : 'text'
  const part = (value: string) => ({
    type,
    [field]: value,
    ...(refused ? {} : { annotations: [], logprobs: [] }),
  })
  const phase = beforeCall ? 'commentary' : 'final_answer'
  const item = { id: item_id, type: 'message', role: 'assistant', phase }
  const at = { item_id, output_index, content_index: 0 }
  yield added(output_index, { ...item, status: 'in_progress', content: [] })
  yield { type: 'response.content_part.added', ...at, part: part('') }
  yield* deltas(play, text, { type: `response.${type}.delta`, ...at })
  yield { type: `response.${type}.done`, ...at, [field]: text }
  yield { type: 'response.content_part.done', ...at, part: part(text) }
  const whole = { ...item, status, content: [part(text)] }
  yield done(output_index, whole)
  return whole
}

function* playReasoning(play: Play, { parts }: Item<'reasoning'>, output_index: number): Playing {
  const item_id = play.id('rs')
  const { reasoning, include } = play.body
  const asked = isObject(reasoning) && reasoning.summary ? parts : []
  // The item's first event has another token, which is of no use (wire/openai.md 4).
  const item = { id: item_id, type: 'reasoning' }
  yield added(output_index, { ...item, summary: [], encrypted_content: 'gAAAAAnotyet' })
  const summary: Json[] = []
  for (const [summary_index, text] of asked.entries()) {
    const at = { item_id, output_index, summary_index }
    const part = (value: string) => ({ type: 'summary_text', text: value })
    yield { type: 'response.reasoning_summary_part.added', ...at, part: part('') }
    yield* deltas(play, text, { type: 'response.reasoning_summary_text.delta', ...at })
    yield { type: 'response.reasoning_summary_text.done', ...at, text }
    yield { type: 'response.reasoning_summary_part.done', ...at, part: part(text) }
    summary.push(part(text))
  }
  const wanted = Array.isArray(include) && include.includes('reasoning.encrypted_content')
  const whole = { ...item, summary, ...(wanted ? { encrypted_content: play.issue(asked) } : {}) }
  yield done(output_index, whole)
  return whole
}

function* playCall(play: Play, call: Item<'call'>, output_index: number, { status }: Fate): Playing {
  const item_id = play.id('fc')
  const text = typeof call.arguments === 'string' ? call.arguments : JSON.stringify(call.arguments)
  const item = { id: item_id, type: 'function_call', call_id: play.id('call'), name: call.name }
  const at = { item_id, output_index }
  yield added(output_index, { ...item, status: 'in_progress', arguments: '' })
  yield* deltas(play, text, { type: 'response.function_call_arguments.delta', ...at }, 4)
  yield { type: 'response.function_call_arguments.done', ...at, arguments: text }
  const whole = { ...item, status, arguments: text }
  yield done(output_index, whole)
  return whole
}

const added = (output_index: number, item: Json): Json => ({
  type: 'response.output_item.added',
  output_index,
  item,
})
const done = (output_index: number, item: Json): Json => ({
  type: 'response.output_item.done',
  output_index,
  item,
})

/** The deltas of a text at the scene's pace. `obfuscation` pads each delta to a length that tells nothing. */
function* deltas(play: Play, text: string, head: Json, count?: number): Generator<Step> {
  const { pace } = play.scene
  for (const [i, delta] of pieces(text, pace?.deltas ?? count).entries()) {
    if (pace && pace.ms > 0 && i > 0) yield pause(pace.ms)
    yield { ...head, delta, obfuscation: 'q7'.repeat((delta.length % 5) + 1) }
  }
}
