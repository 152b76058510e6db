/**
 * A scene in the emulated API's form: content blocks, then the frames of a stream or one JSON message
 * (wire/anthropic.md 6). Thinking is shown, emptied or left out as the request asks.
 */
import { createHash } from 'node:crypto'
import type { Turn } from './anthropic-order.ts'
import { type Asker, bytes, claimFor, modeOf, sign, type Transformation } from './anthropic-thinking.ts'
import { type Beat, pause, type Reply } from './http.ts'
import { type Json, list, object } from './json.ts'
import { type Answer, pieces, type SceneItem } from './scene.ts'

/** What an answer is made of besides its scene. */
interface Telling {
  asker: Asker
  turns: readonly Turn[]
  /** Unique in the emulator; ids are made from it */
  serial: number
  cached: { read: number; written: number; fresh: number }
  dropped: readonly Transformation[]
}

const idOf = (kind: string, serial: number, n = 0): string =>
  `${kind}_01${createHash('sha256').update(`${kind}${serial}.${n}`).digest('base64url').replace(/[-_]/g, 'x').slice(0, 22)}`

export const requestId = (serial: number): string => idOf('req', serial)

/** A whole block, and the beats that stream it. */
interface Told {
  block: Json
  deltas: Beat[]
  start: Json
}

const isTold = (item: Told | Beat): item is Told => typeof item === 'object'

export function tell(answer: Answer, telling: Telling): Reply {
  const { asker, serial, dropped } = telling
  const told = blocksOf(answer, telling)
  const usage = usageOf(answer, telling, told)
  const stop = stopOf(answer)
  const message = {
    id: idOf('msg', serial),
    type: 'message',
    role: 'assistant',
    model: asker.model.id,
    container: null,
    diagnostics: null,
    ...(dropped.length > 0 ? { input_transformations: dropped } : {}),
  }
  const headers = { 'request-id': requestId(serial), 'anthropic-organization-id': asker.organization }
  if (asker.body.stream !== true) {
    const content = told.filter(isTold).map(({ block }) => block)
    return { status: 200, headers, body: { ...message, content, ...stop, usage } }
  }
  const { output_tokens: _, ...input } = usage
  const opening = {
    ...message,
    content: [],
    ...NOT_STOPPED,
    usage: { ...input, output_tokens: 1, output_tokens_details: null },
  }
  const beats: Beat[] = [frame({ type: 'message_start', message: opening }), ...body(told)]
  const end = [
    frame({ type: 'message_delta', delta: { container: null, ...stop }, usage }),
    frame({ type: 'message_stop' }),
  ]
  const stream = answer.ending === undefined ? [...beats, ...end] : upTo(beats, answer.after)
  if (typeof answer.ending === 'object') {
    const { code: type, message } = answer.ending
    stream.push(
      frame({ type: 'error', error: { details: null, type, message }, request_id: requestId(serial) }),
    )
  }
  const ending = answer.ending === 'cut' || answer.ending === 'hang' ? answer.ending : 'end'
  return { headers, stream, ending, ...(answer.chunk ? { chunk: answer.chunk } : {}) }
}

const frame = (event: Json): string => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`

/** The first `count` frames with the pauses between them. */
function upTo(beats: Beat[], count = Number.POSITIVE_INFINITY): Beat[] {
  let frames = 0
  return beats.filter((beat) => (typeof beat === 'string' ? frames++ < count : frames < count))
}

function body(told: (Told | Beat)[]): Beat[] {
  let index = -1
  return told.flatMap((item) => {
    if (!isTold(item)) return [item]
    index++
    const at = index
    const delta = (beat: Beat) =>
      typeof beat === 'string'
        ? frame({ type: 'content_block_delta', index: at, delta: JSON.parse(beat) })
        : beat
    return [
      frame({ type: 'content_block_start', index: at, content_block: item.start }),
      ...(at === 0 ? [frame({ type: 'ping' })] : []),
      ...item.deltas.map(delta),
      frame({ type: 'content_block_stop', index: at }),
    ]
  })
}

function blocksOf({ items, ...answer }: Answer, telling: Telling): (Told | Beat)[] {
  const { asker, serial } = telling
  const thoughts = items.map((_, i) => thoughtAt(items, i, asker))
  const of = thoughts.filter((thought) => thought !== undefined).length
  const before: Json[] = []
  let place = 0
  const tellItem = (item: Exclude<SceneItem, { type: 'wait' }>, i: number): Told | null => {
    const isCut = answer.finish === 'length' && i === items.length - 1
    const thought = thoughts[i]
    if (thought !== undefined) return tellThinking(thought, answer, telling, before, { place: place++, of })
    if (item.type === 'text') return tellText(item.text, answer)
    return item.type === 'call' ? tellCall(item, answer, idOf('toolu', serial, i), isCut) : null
  }
  return items.flatMap((item, i): (Told | Beat)[] => {
    if (item.type === 'wait') return [() => item.until]
    const told = tellItem(item, i)
    if (!told) return []
    before.push(told.block)
    return [told]
  })
}

/**
 * The item's text if it comes as thinking: a thought, or with `between_tools` a text before a call (3.3). Undefined: it
 * is no thinking.
 */
function thoughtAt(items: readonly SceneItem[], i: number, { body, model }: Asker): string | undefined {
  const item = items[i]
  const mode = modeOf(body, model)
  if (item?.type === 'reasoning') return mode === 'on' ? item.parts.join('\n\n') : undefined
  const isProgress = mode === 'between_tools' && items.slice(i).some(({ type }) => type === 'call')
  return isProgress && item?.type === 'text' ? item.text : undefined
}

type Manner = Pick<Answer, 'pace'>

function tellText(text: string, answer: Manner): Told {
  return {
    block: { type: 'text', text, citations: null },
    start: { type: 'text', text: '', citations: null },
    deltas: paced(text, answer, (piece) => ({ type: 'text_delta', text: piece })),
  }
}

/** Arguments come after an empty first delta. If the length limit cut the answer, only their first half comes. */
function tellCall(
  item: Extract<SceneItem, { type: 'call' }>,
  answer: Manner,
  id: string,
  cut: boolean,
): Told {
  const whole = typeof item.arguments === 'string' ? item.arguments : JSON.stringify(item.arguments)
  const json = cut ? whole.slice(0, whole.length / 2) : whole === '{}' ? '' : whole
  const head = { type: 'tool_use', id, name: item.name }
  const empty = JSON.stringify({ type: 'input_json_delta', partial_json: '' })
  return {
    block: {
      ...head,
      input: typeof item.arguments === 'string' ? {} : item.arguments,
      caller: { type: 'direct' },
    },
    start: { ...head, input: {}, caller: { type: 'direct' } },
    deltas: [
      empty,
      ...paced(json, answer, (piece) => ({ type: 'input_json_delta', partial_json: piece }), 3),
    ],
  }
}

/** `think redacted` gives an encrypted block. The text is only shown if `display` allows. */
function tellThinking(
  thought: string,
  answer: Manner,
  { asker, turns, serial }: Telling,
  before: readonly Json[],
  part: { place: number; of: number },
): Told {
  const hidden = thought === 'redacted'
  const shown = hidden || displayOf(asker) === 'omitted' ? '' : thought
  const token = sign(claimFor(asker, turns, before, shown, { ...part, response: idOf('msg', serial) }))
  if (hidden) {
    const block = { type: 'redacted_thinking', data: token }
    return { block, start: block, deltas: [] }
  }
  const deltas = paced(shown, answer, (piece) => ({ type: 'thinking_delta', thinking: piece }))
  return {
    block: { type: 'thinking', thinking: shown, signature: token },
    start: { type: 'thinking', thinking: '', signature: '' },
    deltas: [...deltas, JSON.stringify({ type: 'signature_delta', signature: token })],
  }
}

const displayOf = ({ body, model }: Asker): unknown =>
  modeOf(body, model) === 'between_tools' ? 'summarized' : (object(body.thinking).display ?? model.display)

/** A text as the JSON of the scene's number of deltas, with the scene's pauses. */
function paced(text: string, { pace }: Manner, delta: (piece: string) => Json, parts?: number): Beat[] {
  return pieces(text, pace?.deltas ?? parts).flatMap((piece, i) => [
    ...(pace && i > 0 && pace.ms > 0 ? [pause(pace.ms)] : []),
    JSON.stringify(delta(piece)),
  ])
}

const NOT_STOPPED = { stop_reason: null, stop_sequence: null, stop_details: null }

function stopOf({ finish, items }: Answer): Json {
  const reasons = { stop: 'end_turn', length: 'max_tokens', refusal: 'refusal' }
  const called = items.some(({ type }) => type === 'call')
  const stop_reason = finish === undefined ? (called ? 'tool_use' : 'end_turn') : reasons[finish]
  const details = { type: 'refusal', category: null, explanation: 'This was not answered.' }
  return { stop_reason, stop_sequence: null, stop_details: finish === 'refusal' ? details : null }
}

const tokensIn = (text: string): number => Math.ceil(text.length / 4)

function usageOf({ usage = {} }: Answer, { cached }: Telling, told: (Told | Beat)[]): Json {
  const blocks = told.filter(isTold).map(({ block }) => block)
  const thoughts = blocks.filter(({ type }) => type === 'thinking' || type === 'redacted_thinking')
  const thinking = usage.reasoning_tokens ?? thoughts.reduce((sum, block) => sum + tokensIn(bytes(block)), 0)
  const read = usage.cached_tokens ?? cached.read
  const written = usage.input_tokens === undefined ? cached.written : 0
  return {
    input_tokens: usage.input_tokens === undefined ? cached.fresh : usage.input_tokens - read,
    cache_creation_input_tokens: written,
    cache_read_input_tokens: read,
    cache_creation: { ephemeral_5m_input_tokens: written, ephemeral_1h_input_tokens: 0 },
    output_tokens: usage.output_tokens ?? Math.max(1, tokensIn(bytes(blocks))),
    output_tokens_details: thinking > 0 ? { thinking_tokens: thinking } : null,
    server_tool_use: null,
    service_tier: 'standard',
    inference_geo: 'global',
    speed: null,
  }
}

/** The tokens of a prefix are remembered at every cache mark, and found up to twenty blocks before a mark (wire 8). */
export function createPromptCache(): (asker: Asker, turns: readonly Turn[]) => Telling['cached'] {
  const known = new Set<string>()
  return ({ body, organization, model }, turns) => {
    const running = createHash('sha256').update(`${organization} ${model.id}`)
    let size = 0
    const steps = [...list(body.tools), ...list(body.system), ...turns.flatMap(({ blocks }) => blocks)].map(
      (block) => {
        const text = bytes(block)
        size += tokensIn(text)
        return {
          size,
          key: running.update(text).copy().digest('hex'),
          marked: 'cache_control' in object(block),
        }
      },
    )
    const marks = steps.flatMap(({ marked }, i) => (marked ? [i] : []))
    const found = marks.flatMap((i) =>
      steps.slice(Math.max(0, i - 19), i + 1).filter(({ key }) => known.has(key)),
    )
    const read = Math.max(0, ...found.map((step) => step.size))
    for (const { marked, key } of steps) if (marked) known.add(key)
    const written = Math.max(0, (steps[marks.at(-1) ?? -1]?.size ?? 0) - read)
    return { read, written, fresh: size - read - written }
  }
}
