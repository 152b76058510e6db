/**
 * Canonical messages as the Messages API takes them (wire/anthropic.md 4): results first and together, then the user's
 * content, then what the operator says as `system`; roles alternate, the user begins and ends. Relies on
 * src/chat/repair.ts for pairs, ids and names. The same history always gives the same bytes up to the last assistant
 * message: caches and signed thinking depend on that.
 */
import { isPlainText } from '../../src/chat/media.ts'
import {
  isBlank,
  type MediaPart,
  type MessageInput,
  type Part,
  type TextPart,
  type ToolResultPart,
} from '../../src/chat/message.ts'
import { kept, once } from '../../src/chat/once.ts'
import { isTooLarge } from './images.ts'
import { thinkingBlock } from './opaque.ts'
import type {
  AssistantBlock,
  ContentBlock,
  DocumentBlock,
  ImageBlock,
  ImageType,
  TextBlock,
  ToolResultBlock,
  WireMessage,
} from './wire.ts'

interface Rendering {
  /** Thinking blocks stay in the history (thinking.ts). */
  replay: boolean
  /** Calls without thinking get some. */
  thoughtCalls: boolean
  /** False: the model has just refused those that repair left. */
  systemMessages: boolean
  notes: string[]
}

export function renderMessages(messages: readonly MessageInput[], rendering: Rendering): WireMessage[] {
  const out: WireMessage[] = []
  let turn = emptyTurn()
  for (const message of messages) {
    if (message.role !== 'assistant') {
      for (const part of message.parts) collect(part, message.role === 'system', turn)
      continue
    }
    const shown = message.parts.filter(({ type }) => rendering.replay || type !== 'reasoning')
    const own = wellEnded(shown.flatMap(assistantBlocks))
    if (own.length === 0) continue
    const isMissed = rendering.thoughtCalls && own.some(isCall) && !own.some(isThinking)
    const content = isMissed ? [THOUGHT, ...own] : own
    out.push(...userMessages(turn, rendering))
    turn = emptyTurn()
    pushAssistant(out, content)
  }
  out.push(...userMessages(turn, rendering))
  return endedByUser(out, rendering)
}

/**
 * In place of thinking that is not there to go back, since another model made the calls: the models that ask for it take
 * any, but for an empty one (farion1231/cc-switch#3377).
 */
const THOUGHT: AssistantBlock = kept({ type: 'thinking', thinking: '…', signature: '' })

/**
 * Puts calls last. Other vendors' models, and Claude now and then, write text after them, which the vendor takes for
 * prefill: "This model does not support assistant message prefill" (Kilo-Org/kilocode#13748, stacklok/mecatl#1465).
 * Thinking may not be last either ("The final block in an assistant message cannot be `thinking`",
 * tailcallhq/forgecode#3071), as it is in an answer that was cut or taken back while the model thought. Blocks up to
 * the last thinking before the calls stay as they came.
 */
function wellEnded(blocks: readonly AssistantBlock[]): AssistantBlock[] {
  const words = blocks.slice(0, blocks.findLastIndex((block) => !isThinking(block)) + 1)
  const lastCall = words.findLastIndex(isCall)
  if (lastCall < 0 || lastCall === words.length - 1) return words
  const start = words.slice(0, lastCall).findLastIndex(isThinking) + 1
  const own = words.slice(start).filter((block) => !isThinking(block))
  return [...words.slice(0, start), ...own.filter((block) => !isCall(block)), ...own.filter(isCall)]
}

/** Prefill is refused since 4.6, so the assistant never has the last word (wire/anthropic.md 3.6). */
function endedByUser(out: WireMessage[], { notes }: Rendering): WireMessage[] {
  const last = out.at(-1)
  if (last && last.role !== 'assistant') return out
  notes.push(
    `messages: ${last ? "the last one is the assistant's" : 'there are none'}; a user's text was put after`,
  )
  return [...out, said(last ? 'Continue.' : 'Begin.')]
}

function pushAssistant(out: WireMessage[], content: AssistantBlock[]): void {
  const last = out.at(-1)
  if (!last) out.push(said('Begin.'))
  if (last?.role !== 'assistant') {
    out.push({ role: 'assistant', content })
    return
  }
  // Thinking must come first in its message, and this message was made after the 'Continue.' that endedByUser sent.
  if (isThinking(content[0])) out.push(said('Continue.'), { role: 'assistant', content })
  else last.content.push(...content)
}

const said = (text: string): WireMessage => ({ role: 'user', content: [{ type: 'text', text }] })
const isThinking = (block?: AssistantBlock) =>
  block?.type === 'thinking' || block?.type === 'redacted_thinking'
const isCall = ({ type }: AssistantBlock) => type === 'tool_use'

/** What comes between two of the assistant's messages. */
interface UserTurn {
  results: ToolResultBlock[]
  content: ContentBlock[]
  system: TextBlock[]
}
const emptyTurn = (): UserTurn => ({ results: [], content: [], system: [] })

function collect(part: Part, bySystem: boolean, turn: UserTurn): void {
  switch (part.type) {
    case 'text': {
      const texts = bySystem ? turn.system : turn.content
      texts.push(givenText(part))
      return
    }
    case 'image':
    case 'audio':
    case 'file':
      turn.content.push(...mediaBlocks(part))
      return
    case 'tool_result':
      turn.results.push(toolResult(part))
      // One by one: a hundred thousand arguments overflow the stack.
      for (const block of besideFailed(part)) turn.content.push(block)
      return
    case 'reasoning':
    case 'tool_call':
    case 'notice':
      return
    default:
      return part satisfies never
  }
}

const givenText = once(({ text }: TextPart) => kept(textBlock(text)))

/**
 * A system message may only follow a user's (wire/anthropic.md 3.2): it goes after all that the turn holds; if the turn
 * holds nothing else, or the model takes none, its text is given as a user's.
 */
function userMessages({ results, content, system }: UserTurn, { systemMessages }: Rendering): WireMessage[] {
  const given = [...results, ...content]
  if (given.length === 0 && system.length === 0) return []
  if (system.length === 0) return [{ role: 'user', content: given }]
  if (given.length === 0 || !systemMessages) {
    const text = `[System message]\n${system.map(({ text }) => text).join('\n')}`
    return [{ role: 'user', content: [...given, textBlock(text)] }]
  }
  return [
    { role: 'user', content: given },
    { role: 'system', content: system },
  ]
}

const assistantBlocks = once((part: Part): readonly AssistantBlock[] => {
  switch (part.type) {
    case 'text':
      return isBlank(part.text) ? [] : [kept(textBlock(part.text))]
    case 'reasoning':
      return thinkingBlock(part).map(kept)
    case 'tool_call': {
      const { call_id, name, arguments: input } = part
      return [kept({ type: 'tool_use', id: call_id, name, input })]
    }
    case 'image':
    case 'audio':
    case 'file':
    case 'tool_result':
    case 'notice':
      return []
    default:
      return part satisfies never
  }
})

const toolResult = once((part: ToolResultPart): ToolResultBlock => {
  const content = part.content.flatMap((item): readonly ContentBlock[] => {
    if (item.type === 'text') return [textBlock(item.text)]
    return part.is_error ? [] : mediaBlocks(item)
  })
  const hasText = content.some(({ type }) => type === 'text')
  if (part.structured !== undefined && !hasText) content.push(textBlock(JSON.stringify(part.structured)))
  // "content cannot be empty if `is_error` is true" (can1357/oh-my-pi#2250)
  if (part.is_error && content.length === 0) content.push(textBlock('The tool failed without a message.'))
  return kept({
    type: 'tool_result',
    tool_use_id: part.call_id,
    ...(content.length > 0 ? { content } : {}),
    ...(part.is_error ? { is_error: true } : {}),
  })
})

/** "all content must be type `text` if `is_error` is true": a failed call's media follow the results. */
const besideFailed = once(({ name, content, is_error }: ToolResultPart): readonly ContentBlock[] => {
  const media = is_error ? content.filter((item) => item.type !== 'text') : []
  if (media.length === 0) return []
  return [textBlock(`[From the result of ${name}:]`), ...media.flatMap(mediaBlocks)].map(kept)
})

const textBlock = (text: string): TextBlock => ({ type: 'text', text })

/**
 * A medium as the block of its kind; none if the API does not take it in any form. Remembered, since each request asks
 * whether the model takes it.
 */
export const mediaBlocks = once((part: MediaPart): readonly ContentBlock[] => {
  const block = part.type === 'image' ? imageBlock(part) : part.type === 'file' ? documentBlock(part) : null
  return block ? [kept(block)] : []
})

/** Types that the vision page names (wire/anthropic.md 3.6). */
const IMAGE_TYPES: readonly ImageType[] = ['image/jpeg', 'image/png', 'image/gif', 'image/webp']

function imageBlock({ media_type, data, url }: MediaPart): ImageBlock | null {
  const type = IMAGE_TYPES.find((known) => known === media_type)
  if (!type) return null
  if (isFetched(url)) return { type: 'image', source: { type: 'url', url } }
  if (data === undefined || isTooLarge(data)) return null
  return { type: 'image', source: { type: 'base64', media_type: type, data } }
}

/** "Only HTTPS URLs are supported." */
const isFetched = (url: string | undefined): url is string => url !== undefined && /^https:/i.test(url)

const PDF = 'application/pdf'

/**
 * A longer title makes the vendor refuse the request (ansari-project/ansari-backend#158); a tool's resource has its
 * address as title.
 */
const LONGEST_TITLE = 500

function documentBlock({ media_type, data, url, name }: MediaPart): DocumentBlock | null {
  const source = documentSource(media_type, data, url)
  return source && { type: 'document', source, ...(name ? { title: name.slice(0, LONGEST_TITLE) } : {}) }
}

function documentSource(type: string, data?: string, url?: string): DocumentBlock['source'] | null {
  if (type === PDF && isFetched(url)) return { type: 'url', url }
  if (type === PDF && data !== undefined) return { type: 'base64', media_type: PDF, data }
  if (data === undefined || !isPlainText(type)) return null
  const text = Buffer.from(data, 'base64').toString('utf8')
  return isBlank(text) ? null : { type: 'text', media_type: 'text/plain', data: text }
}
