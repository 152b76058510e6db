/** The input items as the real services accept them (wire/openai.md 4): fields, ids, content, pairs, tokens. */
import { isDead, seenAs } from './bytes.ts'
import { isObject, type Json, parseObject } from './json.ts'
import {
  type Asked,
  checkName,
  listed,
  oneOf,
  onlyFields,
  refuse,
  refuseDetail,
  text,
} from './openai-refusal.ts'

/** Throws a Refusal for the first item, or the first fault in their order, that the service would refuse. */
export function checkInput(items: unknown[], asked: Asked): void {
  items.forEach((item, i) => {
    checkItem(item, `input[${i}]`, asked)
  })
  checkOrder(items.filter(isObject), asked)
}

/** Fields besides `type`, `id`, `status`: the required ones, then the optional ones. */
const ITEM_FIELDS: Readonly<Record<string, readonly [required: string[], optional: string[]]>> = {
  message: [['role', 'content'], ['phase']],
  function_call: [
    ['call_id', 'name', 'arguments'],
    ['namespace', 'caller', 'async'],
  ],
  function_call_output: [
    ['call_id', 'output'],
    ['name', 'namespace', 'caller'],
  ],
  reasoning: [['summary'], ['content', 'encrypted_content']],
  custom_tool_call: [['call_id', 'name', 'input'], []],
  custom_tool_call_output: [['call_id', 'output'], []],
}
const PREFIXES: Readonly<Record<string, string>> = {
  message: 'msg',
  function_call: 'fc',
  function_call_output: 'fco',
  reasoning: 'rs',
  custom_tool_call: 'ctc',
  custom_tool_call_output: 'ctco',
}

function checkItem(item: unknown, at: string, asked: Asked): void {
  if (!isObject(item)) refuse(`Invalid type for '${at}': expected an object.`, at, 'invalid_type')
  const type = item.type === undefined ? 'message' : text(item.type)
  const fields = ITEM_FIELDS[type]
  if (!fields) refuse(`Invalid value: '${type}'.`, `${at}.type`, 'invalid_value')
  const [required, optional] = fields
  for (const field of required) {
    if (item[field] === undefined) {
      refuse(`Missing required parameter: '${at}.${field}'.`, `${at}.${field}`, 'missing_required_parameter')
    }
  }
  const allowed = ['type', 'id', ...(asked.chatgpt ? [] : ['status']), ...required, ...optional]
  onlyFields(item, allowed, at)
  checkId(item.id, PREFIXES[type] ?? '', at)
  ITEM_CHECKS[type]?.(item, at, asked)
}

function checkId(id: unknown, prefix: string, at: string): void {
  if (id === undefined || id === null) return
  if (text(id).startsWith(`${prefix}_`) && text(id).length <= 64) return
  refuse(
    `Invalid '${at}.id': '${String(id)}'. Expected an ID that begins with '${prefix}'.`,
    `${at}.id`,
    'invalid_value',
  )
}

const ITEM_CHECKS: Readonly<Record<string, (item: Json, at: string, asked: Asked) => void>> = {
  message: checkMessage,
  function_call(item, at) {
    checkCallId(item.call_id, at)
    checkName(item.name, `${at}.name`)
    if (parseObject(text(item.arguments)) === null) {
      refuse(
        `Invalid type for '${at}.arguments': expected a string of a JSON object.`,
        `${at}.arguments`,
        'invalid_type',
      )
    }
  },
  function_call_output(item, at, asked) {
    checkCallId(item.call_id, at)
    if (typeof item.output === 'string') return
    checkContent(item.output, `${at}.output`, givenTypes(asked))
  },
  reasoning: checkReasoning,
}

function checkCallId(id: unknown, at: string): void {
  if (text(id) !== '' && text(id).length <= 64) return
  refuse(
    `Invalid '${at}.call_id': string too long or empty. Expected a string with maximum length 64.`,
    `${at}.call_id`,
    'string_above_max_length',
  )
}

function checkMessage(item: Json, at: string, asked: Asked): void {
  const role = text(item.role)
  if (!['user', 'assistant', 'developer', 'system'].includes(role)) {
    refuse(`Invalid value: '${role}'.`, `${at}.role`, 'invalid_value')
  }
  if (asked.chatgpt && role === 'system') refuseDetail('System messages are not allowed')
  const hasPhase = item.phase !== undefined && item.phase !== null
  if (hasPhase && !(role === 'assistant' && ['commentary', 'final_answer'].includes(text(item.phase)))) {
    refuse(`Invalid value: '${String(item.phase)}'.`, `${at}.phase`, 'invalid_value')
  }
  if (typeof item.content === 'string' && !asked.chatgpt) return
  if (!Array.isArray(item.content)) {
    refuse(`Unknown parameter: '${at}.content'.`, `${at}.content`, 'unknown_parameter')
  }
  checkContent(item.content, `${at}.content`, CONTENTS[role] ?? givenTypes(asked))
  if (asked.typed && role === 'assistant' && !(item.id && item.status)) {
    refuse(
      `2 validation errors:\n  {'type': 'string_type', 'loc': ('body', 'input', 'str'), 'msg': 'Input should be a valid string'}\n  {'type': 'missing', 'loc': ('body', 'input', 'list[union[EasyInputMessageParam,Message,ResponseOutputMessageParam]]', 1, 'ResponseOutputMessageParam', 'id'), 'msg': 'Field required'}`,
    )
  }
}

/** A developer's messages hold only texts (can1357/oh-my-pi#3443). */
const CONTENTS: Readonly<Record<string, readonly string[]>> = {
  assistant: ['output_text', 'refusal'],
  developer: ['input_text'],
  system: ['input_text'],
}
const givenTypes = ({ chatgpt }: Asked): readonly string[] => [
  'input_text',
  'input_image',
  ...(chatgpt ? [] : ['input_file']),
]

function checkContent(content: unknown, at: string, types: readonly string[]): void {
  if (!Array.isArray(content) || content.length === 0) {
    refuse(`Missing required parameter: '${at}[0]'.`, at, 'missing_required_parameter')
  }
  content.forEach((part, i) => {
    if (!isObject(part) || !types.includes(text(part.type))) {
      refuse(
        `Invalid value: '${isObject(part) ? text(part.type) : String(part)}'. Supported values are: ${listed(types)}.`,
        `${at}[${i}]`,
        'invalid_value',
      )
    }
    onlyFields(part, PART_FIELDS[text(part.type)] ?? [], `${at}[${i}]`)
    PART_CHECKS[text(part.type)]?.(part, `${at}[${i}]`)
  })
}

/** As the vendor's SDK lists them */
const PART_FIELDS: Readonly<Record<string, readonly string[]>> = {
  input_text: ['type', 'text', 'prompt_cache_breakpoint'],
  input_image: ['type', 'image_url', 'file_id', 'detail', 'prompt_cache_breakpoint'],
  input_file: ['type', 'file_data', 'file_id', 'file_url', 'filename', 'detail', 'prompt_cache_breakpoint'],
  output_text: ['type', 'text', 'annotations', 'logprobs'],
  refusal: ['type', 'refusal'],
}

const withText = (field: string) => (part: Json, at: string) => {
  if (typeof part[field] === 'string') return
  refuse(`Invalid type for '${at}.${field}': expected a string.`, `${at}.${field}`, 'invalid_type')
}

/** Files are accepted by their ending (developers.openai.com, "File inputs"). */
const FILES =
  'pdf txt md json html xml css js ts py c cpp java doc docx rtf odt ppt pptx csv tsv xls xlsx'.split(' ')

/** openai/codex#23829, vercel/ai#8857 */
function checkUrl(url: unknown): void {
  if (isDead(url)) refuse(`Error while downloading ${url}.`, 'url', 'invalid_value')
}

const PART_CHECKS: Readonly<Record<string, (part: Json, at: string) => void>> = {
  input_text: withText('text'),
  output_text: withText('text'),
  refusal: withText('refusal'),
  input_image(part, at) {
    withText('image_url')(part, at)
    oneOf(part.detail, ['auto', 'low', 'high', 'original'], `${at}.detail`)
    checkUrl(part.image_url)
    if (/^https?:\/\//.test(text(part.image_url))) return
    const [, data] =
      /^data:image\/(?:png|jpeg|webp|gif);base64,([A-Za-z0-9+/]+=*)$/.exec(text(part.image_url)) ?? []
    if (seenAs(data)?.startsWith('image/')) return
    refuse('The image data you provided does not represent a valid image.', at, 'invalid_image_url')
  },
  input_file(part, at) {
    checkUrl(part.file_url)
    if (part.file_url !== undefined || part.file_id !== undefined) return
    const [, type, data] = /^data:([\w.+-]+\/[\w.+-]+);base64,(.*)/.exec(text(part.file_data)) ?? []
    if (type === undefined || text(part.filename) === '') {
      refuse(`Missing required parameter: '${at}.filename'.`, at, 'missing_required_parameter')
    }
    if (!FILES.includes(/\.(\w+)$/.exec(text(part.filename))?.[1] ?? '')) {
      refuse(
        'Expected context stuffing file type to be a supported format.',
        `${at}.filename`,
        'unsupported_file',
      )
    }
    if (type === 'application/pdf' && seenAs(data) !== type) {
      refuse('The PDF that you provided cannot be read.', at, 'invalid_value')
    }
  },
}

function checkReasoning(item: Json, at: string, { verify }: Asked): void {
  const { id, summary, encrypted_content: token } = item
  if (!Array.isArray(summary)) refuse(`Invalid type for '${at}.summary'.`, `${at}.summary`, 'invalid_type')
  // Nothing is stored here, so an id refers to nothing and the token must hold all of the reasoning.
  if (id !== undefined || typeof token !== 'string') {
    refuse(
      `Item with id '${String(id ?? 'rs_')}' not found. Items are not persisted when \`store\` is set to false. Try again with \`store\` set to true, or remove this item from your input.`,
      'input',
      null,
      404,
    )
  }
  const segments = summary.map((segment) => text(isObject(segment) ? segment.text : ''))
  if (verify(token, segments)) return
  refuse(
    `The encrypted content ${token.slice(0, 12)}... could not be verified. Reason: Encrypted content could not be decrypted or parsed.`,
    null,
    'invalid_encrypted_content',
  )
}

/** Every call needs one output after it, every output a call before it, and reasoning must precede its item. */
function checkOrder(items: Json[], asked: Asked): void {
  const open = new Set<string>()
  const seen = new Set<string>()
  items.forEach((item, i) => {
    const id = text(item.call_id)
    if (item.type === 'function_call' || item.type === 'custom_tool_call') {
      if (seen.has(id)) refuse(`Duplicate call_id '${id}' in input.`, `input[${i}].call_id`, 'invalid_value')
      seen.add(id)
      open.add(id)
    }
    if (/_call_output$/.test(text(item.type)) && !open.delete(id)) {
      refuse(`No tool call found for function call output with call_id ${id}.`, 'input')
    }
    if (item.type === 'reasoning') checkFollower(items[i + 1], asked)
  })
  const [orphan] = open
  if (orphan !== undefined) refuse(`No tool output found for function call ${orphan}.`, 'input')
}

function checkFollower(next: Json | undefined, { chatgpt }: Asked): void {
  const own =
    next?.type === 'reasoning' ||
    next?.type === 'function_call' ||
    next?.type === 'custom_tool_call' ||
    (next?.type === 'message' && next.role === 'assistant')
  if (own) return
  refuse(
    `Item of type 'reasoning' was provided without its required following item.`,
    'input',
    chatgpt ? null : 'invalid_value',
  )
}
