/**
 * What the emulated API refuses in `messages`: roles and their order, blocks and their place, tool calls and their
 * results (wire/anthropic.md 3.2, 3.6, 4). Thinking is checked in anthropic-thinking.ts.
 */

import type { EmulatedModel } from './anthropic-models.ts'
import { checkText, invalid, onlyKeys } from './anthropic-rules.ts'
import { isDead, pdfPages, pngSide, seenAs } from './bytes.ts'
import { type Json, list, object, string } from './json.ts'

/** A message with its content as blocks; `index` is its place in the request. */
export interface Turn {
  role: string
  index: number
  blocks: Json[]
}

const BLOCK_KEYS: Record<string, string[]> = {
  text: ['type', 'text', 'cache_control', 'citations'],
  image: ['type', 'source', 'cache_control'],
  document: ['type', 'source', 'title', 'context', 'citations', 'cache_control'],
  tool_use: ['type', 'id', 'name', 'input', 'cache_control', 'caller'],
  tool_result: ['type', 'tool_use_id', 'content', 'is_error', 'cache_control'],
  thinking: ['type', 'thinking', 'signature', 'cache_control'],
  redacted_thinking: ['type', 'data', 'cache_control'],
}
const IN_ROLE: Record<string, string[]> = {
  user: ['text', 'image', 'document', 'tool_result'],
  assistant: ['text', 'tool_use', 'thinking', 'redacted_thinking'],
  system: ['text'],
}

export function checkMessages(messages: unknown, model: EmulatedModel): Turn[] {
  if (!Array.isArray(messages)) invalid('messages: Field required')
  if (messages.length === 0) invalid('messages: at least one message is required')
  const turns = messages.map((message, index) => turnOf(object(message), index))
  for (const turn of turns) {
    for (const [i, block] of turn.blocks.entries()) checkBlock(block, turn, i)
  }
  checkMedia(turns, model)
  if (turns[0]?.role !== 'user') invalid('messages: first message must use the "user" role')
  checkSystemRole(turns, model)
  checkLast(turns, model)
  checkCallsLast(turns)
  checkPairs(turns)
  return turns
}

/**
 * At most 100 images and documents (in the words of anthropics/claude-code#24541), and images and document pages, for a
 * window of 200,000 tokens, else 600. Among more than 20 images none above 2000 pixels (wire/anthropic.md 3.6, in the
 * words of anthropics/claude-code#2664).
 */
function checkMedia(turns: Turn[], { window }: EmulatedModel): void {
  const most = window > 200_000 ? 600 : 100
  const [images, documents] = [sourcesIn(turns, 'image'), sourcesIn(turns, 'document')]
  const pages = documents.reduce((sum, { data }) => sum + pdfPages(data), 0)
  if (images.length + documents.length > most)
    invalid(`too many images and documents: ${images.length} + ${documents.length} > ${most}`)
  if (pages + images.length > most)
    invalid(`Too much media: ${pages} document pages + ${images.length} images > ${most}`)
  if (images.length > 20 && images.some(({ data }) => pngSide(data) > 2000))
    invalid(`${SIDES} for many-image requests: 2000 pixels`)
}

function sourcesIn(turns: Turn[], kind: 'image' | 'document'): Json[] {
  const blocks = turns.flatMap((turn) => turn.blocks)
  const all = [...blocks, ...blocks.flatMap(({ content }) => list(content).map(object))]
  return all.filter(({ type }) => type === kind).map(({ source }) => object(source))
}

/** Characters that are no words: an image is read by its pixels, a PDF by its pages. */
export const base64In = (turns: Turn[]): number =>
  [...sourcesIn(turns, 'image'), ...sourcesIn(turns, 'document')]
    .filter(({ type }) => type === 'base64')
    .reduce((sum, { data }) => sum + String(data).length, 0)

const SIDES = 'At least one of the image dimensions exceed max allowed size'

function turnOf(message: Json, index: number): Turn {
  const path = `messages.${index}`
  onlyKeys(message, ['role', 'content'], path)
  const role = string(message.role) ?? ''
  if (!(role in IN_ROLE)) invalid(`${path}.role: Input should be 'user', 'assistant' or 'system'`)
  const blocks =
    typeof message.content === 'string'
      ? [{ type: 'text', text: message.content }]
      : list(message.content).map(object)
  if (blocks.length === 0) {
    invalid(
      `${path}: all messages must have non-empty content except for the optional final assistant message`,
    )
  }
  return { role, index, blocks }
}

function checkBlock(block: Json, { role, index }: Turn, i: number): void {
  const path = `messages.${index}.content.${i}`
  const type = string(block.type) ?? ''
  const keys = BLOCK_KEYS[type]
  if (!keys || !IN_ROLE[role]?.includes(type)) {
    invalid(
      `${path}: Input tag '${type}' found using 'type' does not match any of the expected tags for role ${role}`,
    )
  }
  onlyKeys(block, keys, `${path}.${type}`)
  CHECKS[type]?.(block, path)
}

const CHECKS: Record<string, (block: Json, path: string) => void> = {
  text: (block, path) => checkText(block, path, 'messages'),
  image: (block, path) => checkImage(object(block.source), path),
  document(block, path) {
    checkTitle(block.title, `${path}.document.title`)
    checkDocument(object(block.source), path)
  },
  tool_use(block, path) {
    checkId(block.id, `${path}.tool_use.id`)
    if (!/^[a-zA-Z0-9_-]{1,128}$/.test(string(block.name) ?? '')) {
      invalid(`${path}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'`)
    }
    if (typeof block.input !== 'object' || block.input === null || Array.isArray(block.input)) {
      invalid(`${path}.tool_use.input: Input should be a valid dictionary`)
    }
  },
  tool_result(block, path) {
    checkId(block.tool_use_id, `${path}.tool_result.tool_use_id`)
    if (block.is_error === true) checkFailed(block.content ?? '', path)
    if (typeof block.content === 'string' || block.content === undefined) return
    list(block.content).forEach((entry, i) => {
      const part = object(entry)
      const type = string(part.type) ?? ''
      const place = `${path}.tool_result.content.${i}`
      if (!['text', 'image', 'document'].includes(type))
        invalid(`${place}: Input tag '${type}' is not expected`)
      onlyKeys(part, BLOCK_KEYS[type] ?? [], `${place}.${type}`)
      CHECKS[type]?.(part, place)
    })
  },
}

/** A failed call's result must have content, and only text. */
function checkFailed(content: unknown, path: string): void {
  if (content === '' || (Array.isArray(content) && content.length === 0)) {
    invalid(`${path}.tool_result: content cannot be empty if \`is_error\` is true`)
  }
  if (list(content).some((entry) => object(entry).type !== 'text')) {
    invalid(`${path}.tool_result: all content must be type \`text\` if \`is_error\` is true`)
  }
}

function checkId(id: unknown, path: string): void {
  if (!/^[a-zA-Z0-9_-]{1,64}$/.test(string(id) ?? ''))
    invalid(`${path}: String should match pattern '^[a-zA-Z0-9_-]+$'`)
}

const IMAGES = ['image/jpeg', 'image/png', 'image/gif', 'image/webp']
const isBase64 = (value: unknown) =>
  typeof value === 'string' && /^[A-Za-z0-9+/]+={0,2}$/.test(value) && value.length % 4 === 0

function checkImage(source: Json, path: string): void {
  if (source.type === 'url') return checkUrl(source, `${path}.image.source`)
  if (source.type !== 'base64')
    invalid(`${path}.image.source.type: Input should be 'base64', 'url' or 'file'`)
  onlyKeys(source, ['type', 'media_type', 'data'], `${path}.image.source.base64`)
  if (!IMAGES.includes(String(source.media_type))) {
    invalid(
      `${path}.image.source.base64.media_type: Input should be ${IMAGES.map((t) => `'${t}'`).join(', ')}`,
    )
  }
  if (!isBase64(source.data)) invalid(`${path}.image.source.base64.data: invalid base64 data`)
  const { length } = String(source.data)
  if (length > 10_485_760)
    invalid(`${path}.image.source.base64: image exceeds 10 MB maximum: ${length} bytes > 10485760 bytes`)
  if (pngSide(source.data) > 8000) invalid(`${path}.image.source.base64.data: ${SIDES}: 8000 pixels`)
  const seen = seenAs(source.data)
  if (!seen?.startsWith('image/')) invalid('Could not process image')
  if (seen !== source.media_type) {
    // vybestack/llxprt-code#2130
    const words = `specified using the ${source.media_type} media type, but the image appears to be a ${seen} image`
    invalid(`${path}.image.source.base64: The image was ${words}`)
  }
}

/** The bounds are those of the vendor's OpenAPI document. */
function checkTitle(title: unknown, path: string): void {
  if (title === undefined || title === null) return
  const { length } = [...(string(title) ?? '')]
  if (length < 1) invalid(`${path}: String should have at least 1 character`)
  if (length > 500) invalid(`${path}: String should have at most 500 characters`)
}

function checkDocument(source: Json, path: string): void {
  const place = `${path}.document.source`
  if (source.type === 'url') return checkUrl(source, place)
  onlyKeys(source, ['type', 'media_type', 'data'], place)
  if (source.type === 'text') {
    if (source.media_type !== 'text/plain') invalid(`${place}.text.media_type: Input should be 'text/plain'`)
    if (string(source.data)?.trim() === '') invalid(`${place}.text.data: must be non-empty`)
    return
  }
  if (source.type !== 'base64')
    invalid(`${place}.type: Input should be 'base64', 'text', 'content', 'url' or 'file'`)
  if (source.media_type !== 'application/pdf')
    invalid(`${place}.base64.media_type: Input should be 'application/pdf'`)
  if (!isBase64(source.data)) invalid(`${place}.base64.data: invalid base64 data`)
  if (seenAs(source.data) !== 'application/pdf')
    invalid(`${place}.base64.data: The PDF specified was not valid.`)
}

function checkUrl(source: Json, path: string): void {
  onlyKeys(source, ['type', 'url'], `${path}.url`)
  if (!/^https:\/\//.test(string(source.url) ?? ''))
    invalid(`${path}.url.url: Only HTTPS URLs are supported.`)
  if (isDead(source.url)) invalid('Unable to download the file. Please verify the URL and try again.')
}

/**
 * A system message is never first. It follows a user's message, and precedes an assistant's or is the last
 * (wire/anthropic.md 3.2).
 */
function checkSystemRole(turns: Turn[], model: EmulatedModel): void {
  turns.forEach((turn, i) => {
    if (turn.role !== 'system') return
    if (!model.systemRole) invalid("messages: role 'system' is not supported on this model")
    const next = turns[i + 1]
    if (turns[i - 1]?.role !== 'user' || (next && next.role !== 'assistant')) {
      invalid(
        `messages.${turn.index}: a system message must follow a user message and precede an assistant message or end the conversation`,
      )
    }
  })
}

const PREFILL =
  'This model does not support assistant message prefill. The conversation must end with a user message.'

/** The API says this wherever the prefill is (Kilo-Org/kilocode#13748, stacklok/mecatl#1465). */
function checkCallsLast(turns: Turn[]): void {
  for (const { blocks } of mergeRoles(turns)) {
    const last = blocks.findLastIndex(({ type }) => type === 'tool_use')
    if (last >= 0 && blocks.slice(last).some(({ type }) => type === 'text')) invalid(PREFILL)
  }
}

function checkLast(turns: Turn[], model: EmulatedModel): void {
  const last = turns.at(-1)
  if (last?.role !== 'assistant') return
  if (!model.prefill) invalid(PREFILL)
  const block = last.blocks.at(-1)
  if (block?.type === 'text' && /\s$/.test(String(block.text))) {
    invalid('messages: final assistant content cannot end with trailing whitespace')
  }
}

/**
 * Every call must be answered by the next message, with the results first and one result for each call
 * (wire/anthropic.md 4.2).
 */
function checkPairs(turns: Turn[]): void {
  const used = new Set<string>()
  const merged = mergeRoles(turns)
  merged.forEach((turn, i) => {
    const calls = turn.blocks.filter(({ type }) => type === 'tool_use').map(({ id }) => String(id))
    for (const id of calls) {
      if (used.has(id)) invalid(`messages.${turn.index}.content: \`tool_use\` ids must be unique`)
      used.add(id)
    }
    const next = merged[i + 1]
    const answers = next?.role === 'user' ? leadingResults(next) : []
    const open = calls.filter((id) => !answers.includes(id))
    if (open.length > 0) {
      invalid(
        `messages.${turn.index}: \`tool_use\` ids were found without \`tool_result\` blocks immediately after: ${open.join(', ')}. Each \`tool_use\` block must have a corresponding \`tool_result\` block in the next message.`,
      )
    }
    checkResults(turn, merged[i - 1])
  })
}

function checkResults(turn: Turn, before: Turn | undefined): void {
  const calls = before?.role === 'assistant' ? before.blocks.filter(({ type }) => type === 'tool_use') : []
  const seen = new Set<string>()
  turn.blocks.forEach((block, i) => {
    if (block.type !== 'tool_result') return
    const id = String(block.tool_use_id)
    if (!calls.some((call) => call.id === id)) {
      invalid(
        `messages.${turn.index}.content.${i}: unexpected \`tool_use_id\` found in \`tool_result\` blocks: ${id}. Each \`tool_result\` block must have a corresponding \`tool_use\` block in the previous message.`,
      )
    }
    if (seen.has(id))
      invalid(
        `messages.${turn.index}.content.${i}: each tool_use must have a single result. Found multiple \`tool_result\` blocks with id: ${id}`,
      )
    seen.add(id)
  })
}

const leadingResults = ({ blocks }: Turn): string[] => {
  const end = blocks.findIndex(({ type }) => type !== 'tool_result')
  return blocks.slice(0, end < 0 ? blocks.length : end).map(({ tool_use_id }) => String(tool_use_id))
}

/** Consecutive messages of one role count as one. */
export function mergeRoles(turns: readonly Turn[]): Turn[] {
  const merged: Turn[] = []
  for (const turn of turns) {
    const last = merged.at(-1)
    if (last?.role === turn.role) last.blocks = [...last.blocks, ...turn.blocks]
    else merged.push({ ...turn })
  }
  return merged
}
