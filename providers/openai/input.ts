/**
 * Canonical messages as input items (wire/openai.md 4). The history is already repaired: every call has its result,
 * names and ids are legal, tokens are only where they may be sent back.
 */
import type {
  ContentPart,
  MediaPart,
  MessageInput,
  Part,
  TextPart,
  ToolResultPart,
} from '../../src/chat/message.ts'
import { kept, once } from '../../src/chat/once.ts'
import { wellFormedValue } from '../../src/chat/well-formed.ts'
import { phaseOf, reasoningItem } from './opaque.ts'
import type { InputContent, InputItem, TextInput } from './wire.ts'

/**
 * A message that was rendered before gives the same items, with the same bytes. Earlier answers are lists of texts, or
 * plain strings: the API takes both, llama.cpp and its forks long took only lists, and vLLM and others only strings.
 */
export function inputItems(messages: readonly MessageInput[], answers: 'lists' | 'strings'): InputItem[] {
  const items: InputItem[] = []
  // One by one: a hundred thousand arguments overflow the stack.
  for (const message of messages)
    for (const item of itemsOf(message)) items.push(answers === 'lists' ? item : plain(item))
  return items
}

const plain = once((item: InputItem): InputItem => {
  if (item.type !== 'message' || item.role !== 'assistant' || typeof item.content === 'string') return item
  return kept({ ...item, content: item.content.map(({ text }) => text).join('') })
})

/** Instructions as the first message; none if there are none. */
export const instructionItems = (text: string): InputItem[] =>
  given('developer', text === '' ? [] : [{ type: 'input_text', text }])

const itemsOf = once((message: MessageInput): readonly InputItem[] => {
  if (message.role === 'assistant') return assistantItems(message.parts)
  return message.role === 'tool' ? message.parts.flatMap(resultItem) : givenItems(message)
})

/**
 * Role `system` is refused on the ChatGPT path; `developer` means the same on both. It takes no media
 * (can1357/oh-my-pi#3443): these are given as a user's.
 */
function givenItems({ role, parts }: MessageInput): readonly InputItem[] {
  const content = parts.flatMap((part) => (isContent(part) ? [inputContent(part)] : []))
  if (role !== 'system') return given('user', content)
  const media = content.filter((item) => !isText(item))
  return [...given('developer', content.filter(isText)), ...given('user', media)]
}

const given = (role: 'user' | 'developer', content: InputContent[]): InputItem[] =>
  content.length === 0 ? [] : [kept({ type: 'message', role, content })]

/** The items in the order of the parts, without reasoning at the end: the API refuses it with nothing after it. */
function assistantItems(parts: readonly Part[]): InputItem[] {
  const items = parts.flatMap(assistantItem)
  const end = items.findLastIndex(({ type }) => type !== 'reasoning')
  return items.slice(0, end + 1)
}

/** Each part becomes an item of its own. */
const assistantItem = once((part: Part): readonly InputItem[] => {
  switch (part.type) {
    case 'text':
      return part.text === '' ? [] : [kept(assistantMessage(part))]
    case 'reasoning': {
      const item = reasoningItem(part)
      return item ? [kept(item)] : []
    }
    case 'tool_call': {
      const { call_id, name } = part
      return [kept({ type: 'function_call', call_id, name, arguments: wellFormedJson(part.arguments) })]
    }
    case 'tool_result':
    case 'image':
    case 'audio':
    case 'file':
    case 'notice':
      return []
    default:
      return part satisfies never
  }
})

function assistantMessage(part: TextPart): InputItem {
  const phase = phaseOf(part)
  return {
    type: 'message',
    role: 'assistant',
    content: [{ type: 'output_text', text: part.text, annotations: [] }],
    ...(phase ? { phase } : {}),
  }
}

const resultItem = once((part: Part): readonly InputItem[] => {
  if (part.type !== 'tool_result') return []
  const content = resultContent(part).map(inputContent)
  const texts = content.filter(isText)
  const plain = texts.length === content.length
  const output = plain ? texts.map(({ text }) => text).join('\n') : content
  return [kept({ type: 'function_call_output', call_id: part.call_id, output })]
})

/** This wire has no flag for a failed call: the text says what became of it. */
function resultContent(part: ToolResultPart): ContentPart[] {
  const content = [...part.content]
  if (part.structured !== undefined && !content.some(({ type }) => type === 'text')) {
    content.push({ type: 'text', text: wellFormedJson(part.structured) })
  }
  const outcome = part.outcome === 'ok' && part.is_error ? 'error' : part.outcome
  if (outcome !== 'ok') content.unshift({ type: 'text', text: FAILED[outcome] })
  return content.length > 0 ? content : [{ type: 'text', text: '(no output)' }]
}

/**
 * JSON that goes into a text. JSON.stringify only escapes a lone surrogate, and a parser of the JSON would restore it.
 */
const wellFormedJson = (value: unknown): string => JSON.stringify(wellFormedValue(value))

const FAILED = {
  error: '[The tool call failed]',
  cancelled: '[The tool call was cancelled]',
  denied: '[The tool call was denied]',
  outcome_unknown: '[The outcome of the tool call is unknown]',
} as const

const isText = (item: InputContent): item is TextInput => item.type === 'input_text'

const isContent = (part: Part): part is ContentPart =>
  part.type === 'text' || part.type === 'image' || part.type === 'audio' || part.type === 'file'

function inputContent(part: ContentPart): InputContent {
  if (part.type === 'text') return { type: 'input_text', text: part.text }
  if (formOf(part) === 'input_image') {
    return { type: 'input_image', image_url: part.url ?? dataUrl(part), detail: 'auto' }
  }
  if (part.url !== undefined) return { type: 'input_file', file_url: part.url }
  return { type: 'input_file', filename: filename(part), file_data: dataUrl(part) }
}

/** The form in which the API takes a medium; null if in none. */
export function formOf({ type, media_type }: MediaPart): 'input_image' | 'input_file' | null {
  if (IMAGES.has(media_type)) return 'input_image'
  return type === 'file' && !UNREAD.test(media_type) ? 'input_file' : null
}

/** For any other image the API refuses the whole request ("does not represent a valid image"). */
const IMAGES: ReadonlySet<string> = new Set(['image/png', 'image/jpeg', 'image/webp', 'image/gif'])

/** Files are documents here: the API refuses every request that holds a file of another kind. */
const UNREAD =
  /^(?:image|audio|video|font)\/|^application\/(?:octet-stream|gzip|wasm|.*(?:zip|compressed|tar))$/i

const dataUrl = (part: MediaPart): string => `data:${part.media_type};base64,${part.data ?? ''}`

/**
 * Inline files need a name, and its ending decides how they are read: with an ending of another kind than the type's,
 * or an unknown one (`.log`, `.PDF`, the `.com` of a URI), the API refuses the whole request. Such a name gets its
 * type's ending.
 */
function filename({ name = 'file', media_type }: MediaPart): string {
  const [, ending = ''] = /\.([a-z]+)$/.exec(name) ?? []
  const [, subtype = ''] = media_type.split('/')
  const own = ENDINGS[subtype] ?? (KINDS.some((kind) => kind.has(subtype)) ? subtype : 'txt')
  return KINDS.some((kind) => kind.has(ending) && kind.has(own)) ? name : `${name}.${own}`
}

/** Endings that developers.openai.com names under "File inputs"; a name may have any ending of its type's kind. */
const KINDS: readonly ReadonlySet<string>[] = [
  new Set(['pdf']),
  // Browsers on Windows call CSV a file of Excel's.
  new Set(['doc', 'docx', 'rtf', 'odt', 'ppt', 'pptx', 'xls', 'xlsx', 'csv']),
  new Set('txt md json html xml css js ts py c cpp java csv tsv'.split(' ')),
]

/** Endings for subtypes that are not endings themselves. */
const ENDINGS: Readonly<Record<string, string>> = {
  plain: 'txt',
  markdown: 'md',
  javascript: 'js',
  typescript: 'ts',
  'x-python': 'py',
  'tab-separated-values': 'tsv',
  'ld+json': 'json',
  msword: 'doc',
  'vnd.ms-excel': 'xls',
  'vnd.ms-powerpoint': 'ppt',
  'vnd.oasis.opendocument.text': 'odt',
  'vnd.openxmlformats-officedocument.wordprocessingml.document': 'docx',
  'vnd.openxmlformats-officedocument.spreadsheetml.sheet': 'xlsx',
  'vnd.openxmlformats-officedocument.presentationml.presentation': 'pptx',
}
