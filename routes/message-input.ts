/** Checks of callers' messages that a schema cannot make: which parts a role may hold, and the media among them. */
import type { Static } from 'typebox'
import { httpUrl } from '../src/addresses.ts'
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
/** The URLs of a body's media, each with its path in the body */
type Urls = { path: string; url: string }[]

const MEDIA = ['image', 'audio', 'file'] as const
const HOLDS: Record<Role, readonly Part['type'][]> = {
  user: ['text', 'notice', ...MEDIA],
  assistant: ['text', 'reasoning', 'tool_call', 'notice', ...MEDIA],
  tool: ['tool_result'],
  system: ['text', 'notice'],
}

/**
 * What `read` makes of a body, once the URLs that it collected have passed. They are checked together, so that lookups
 * of dead names do not add up. Throws as `read` does, and address_not_allowed with `param`.
 */
export async function reading<T>(
  { refusals }: Pick<RouteDeps, 'refusals'>,
  read: (urls: Urls) => T,
): Promise<T> {
  const urls: Urls = []
  const ready = read(urls)
  const refused = await refusals(urls.map(({ url }) => url))
  for (const [i, { path }] of urls.entries()) if (refused[i]) refuseAt(path)(refused[i])
  return ready
}

/** Text becomes one part. Throws invalid_request. */
export function givenInput(urls: Urls, input: Static<typeof Input>): ContentPart[] {
  const parts = typeof input === 'string' ? [{ type: 'text' as const, text: input }] : input
  if (parts.every((part) => part.type === 'text' && isBlank(part.text))) {
    throw invalid('input', 'input holds nothing but white space.')
  }
  return content(urls, parts, 'input')
}

/** `path` is the message's place in the body, '' for the body itself. Throws as `givenParts` does. */
export function givenMessage(
  urls: Urls,
  { role, parts }: Static<typeof GivenMessage>,
  path: string,
): MessageInput {
  return { role, parts: givenParts(urls, role, parts, path === '' ? 'parts' : `${path}.parts`) }
}

/** Throws invalid_request for a part that the role may not hold, or that is invalid itself. */
export function givenParts(urls: Urls, role: Role, parts: readonly GivenPart[], path: string): Part[] {
  // A provider's answer may be empty, and a message read from one session can be given to another.
  if (parts.length === 0 && role !== 'assistant') throw invalid(path, `${path} must have at least 1 item(s).`)
  return parts.map((part, i) => {
    if (!HOLDS[role].includes(part.type)) {
      const kinds = HOLDS[role].join(', ')
      throw invalid(`${path}[${i}].type`, `A message of role ${role} holds: ${kinds}; not ${part.type}.`)
    }
    return givenPart(urls, part, `${path}[${i}]`)
  })
}

/** Edits of the context with their messages checked; throws as `givenMessage` does. */
export const givenEdits = (urls: Urls, edits: readonly GivenEdit[] = []): ContextEdit[] =>
  edits.map((edit, i) =>
    edit.op === 'delete_at'
      ? edit
      : { ...edit, message: givenMessage(urls, edit.message, `context[${i}].message`) },
  )

function givenPart(urls: Urls, part: GivenPart, path: string): Part {
  switch (part.type) {
    case 'image':
    case 'audio':
    case 'file':
      return givenMedia(urls, part, path)
    case 'tool_result': {
      const isError = part.is_error ?? (part.outcome !== undefined && part.outcome !== 'ok')
      const outcome = part.outcome ?? (isError ? 'error' : 'ok')
      const ready = content(urls, part.content, `${path}.content`)
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

const content = (urls: Urls, parts: readonly ContentPart[], path: string): ContentPart[] =>
  parts.map((part, i) => (part.type === 'text' ? part : givenMedia(urls, part, `${path}[${i}]`)))

/** The medium, its URL normalised by the parser: some services refuse what the parser tolerates. */
function givenMedia(urls: Urls, part: MediaPart, path: string): MediaPart {
  const { type, data, url } = part
  if ((data === undefined) === (url === undefined)) {
    throw invalid(path, `${path} needs exactly one of data (base64) and url.`)
  }
  if (url === undefined) return part
  const parsed = httpUrl(url)
  if (!parsed) {
    throw invalid(`${path}.url`, `${path}.url must be an http or https URL; give the ${type} itself as data.`)
  }
  urls.push({ path: `${path}.url`, url: parsed.href })
  return { ...part, url: parsed.href }
}
