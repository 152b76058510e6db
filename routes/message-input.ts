/** Checks of callers' messages that a schema cannot make: which parts a role may hold, and their media. */
import type { Static } from 'typebox'
import type { ContextEdit } from '../src/chat/edits.ts'
import {
  type ContentPart,
  isBlank,
  type MediaPart,
  type MessageInput,
  type Part,
  type Role,
} from '../src/chat/message.ts'
import { invalid, refuseAt } from '../src/errors.ts'
import type { RouteDeps } from './app.ts'
import type { GivenEdit, GivenMessage, GivenParts, Input } from './schemas.ts'

type GivenPart = Static<typeof GivenParts>[number]
type Check = Pick<RouteDeps, 'assertUrl'>

const MEDIA = ['image', 'audio', 'file'] as const
const HOLDS: Record<Role, readonly Part['type'][]> = {
  user: ['text', 'notice', ...MEDIA],
  assistant: ['text', 'reasoning', 'tool_call', 'notice', ...MEDIA],
  tool: ['tool_result'],
  system: ['text', 'notice'],
}

/** Text becomes one part. Throws invalid_request, address_not_allowed with `param`. */
export async function givenInput(check: Check, input: Static<typeof Input>): Promise<ContentPart[]> {
  const parts = typeof input === 'string' ? [{ type: 'text' as const, text: input }] : input
  if (parts.every((part) => part.type === 'text' && isBlank(part.text))) {
    throw invalid('input', 'input holds nothing but white space.')
  }
  return content(check, parts, 'input')
}

/** `path` is where the message stands in the body, '' for the body itself. */
export async function givenMessage(
  check: Check,
  { role, parts }: Static<typeof GivenMessage>,
  path: string,
): Promise<MessageInput> {
  return { role, parts: await givenParts(check, role, parts, path === '' ? 'parts' : `${path}.parts`) }
}

/** Throws invalid_request at the part that its role may not hold, and whatever a part itself is refused for. */
export async function givenParts(
  check: Check,
  role: Role,
  parts: readonly GivenPart[],
  path: string,
): Promise<Part[]> {
  // A provider may answer with nothing, and a message that was read from one session can be given to another.
  if (parts.length === 0 && role !== 'assistant') throw invalid(path, `${path} must have at least 1 item(s).`)
  const ready: Part[] = []
  for (const [i, part] of parts.entries()) {
    if (!HOLDS[role].includes(part.type)) {
      const kinds = HOLDS[role].join(', ')
      throw invalid(`${path}[${i}].type`, `A message of role ${role} holds: ${kinds}; not ${part.type}.`)
    }
    ready.push(await givenPart(check, part, `${path}[${i}]`))
  }
  return ready
}

/** Edits of the context with their messages checked; throws as `givenMessage`. */
export async function givenEdits(check: Check, edits: readonly GivenEdit[] = []): Promise<ContextEdit[]> {
  const ready: ContextEdit[] = []
  for (const [i, edit] of edits.entries()) {
    if (edit.op === 'delete_at') ready.push(edit)
    else ready.push({ ...edit, message: await givenMessage(check, edit.message, `context[${i}].message`) })
  }
  return ready
}

async function givenPart(check: Check, part: GivenPart, path: string): Promise<Part> {
  switch (part.type) {
    case 'image':
    case 'audio':
    case 'file':
      return givenMedia(check, part, path)
    case 'tool_result': {
      const isError = part.is_error ?? (part.outcome !== undefined && part.outcome !== 'ok')
      const outcome = part.outcome ?? (isError ? 'error' : 'ok')
      const ready = await content(check, part.content, `${path}.content`)
      return { ...part, content: ready, is_error: isError, outcome }
    }
    case 'text':
    case 'reasoning':
    case 'tool_call':
    case 'notice':
      return part
    default:
      return part satisfies never
  }
}

async function content(check: Check, parts: readonly ContentPart[], path: string): Promise<ContentPart[]> {
  const ready: ContentPart[] = []
  for (const [i, part] of parts.entries()) {
    ready.push(part.type === 'text' ? part : await givenMedia(check, part, `${path}[${i}]`))
  }
  return ready
}

/** The medium with its URL as the parser wrote it: some services refuse what a parser is lenient about. */
async function givenMedia(check: Check, part: MediaPart, path: string): Promise<MediaPart> {
  const { type, data, url } = part
  if ((data === undefined) === (url === undefined)) {
    throw invalid(path, `${path} needs exactly one of data (base64) and url.`)
  }
  if (url === undefined) return part
  const parsed = URL.canParse(url) ? new URL(url) : null
  if (!parsed || !/^https?:$/.test(parsed.protocol)) {
    throw invalid(`${path}.url`, `${path}.url must be an http or https URL; give the ${type} itself as data.`)
  }
  await check.assertUrl(parsed.href).catch(refuseAt(`${path}.url`))
  return { ...part, url: parsed.href }
}
