/**
 * `repair(history, target)`: any stored history as a list that the target accepts. Pure; adapters rely on it and never
 * repair again. It guarantees that every tool call is answered by the tool message right after it, one result a call,
 * in call order; no result is without its call; opaque tokens are there only if their provenance fits; ids and names
 * are legal; media are declared as what they are; refused media are texts, and empty parts are gone. A message that
 * needs none of this comes out as the same object. A part that needs some comes out as the object that an earlier
 * repair made of it, if that is equal: adapters remember by object what they rendered.
 */
import { sha256 } from './json.ts'
import { asItIs, fileAsText, mediaAsText } from './media.ts'
import {
  type AssistantPart,
  type ContentPart,
  isBlank,
  type MediaPart,
  type MessageInput,
  type Part,
  type Provenance,
  type ReasoningPart,
  type TextPart,
  type ToolCallPart,
  type ToolResultPart,
} from './message.ts'
import { exposedName, legalCallId } from './names.ts'
import { once } from './once.ts'

/**
 * What must be known of a target's model. Data, per model family; other differences between families are the adapter's
 * own.
 */
export interface Capabilities {
  /** Reasoning tokens are valid only after the exact prefix that they were made under */
  boundThinking: boolean
  /** A text's token holds for every model and credential of the provider; absent: only for those that it came from */
  sharedTextTokens?: boolean
  /** The model is shown this medium, from the user as well as in a tool result */
  takesMedia(part: MediaPart): boolean
  /** Role `system` may appear in mid-conversation; otherwise it is given as a user's text */
  systemMessages: boolean
}

/** Where the history goes. */
export interface RepairTarget extends Capabilities {
  provider: string
  model: string
  credential_id: string | null
  /** Marks of tokens and media that it refused */
  refused?: ReadonlySet<string> | undefined
}

interface Repaired {
  messages: MessageInput[]
  /**
   * Hash of everything that precedes the next answer; goes into the provenance of its parts. Empty unless the model
   * binds its reasoning to the prefix.
   */
  prefix: string
  /** What is not shown, in words for `/render` */
  notes: string[]
}

/** `head` stands for what precedes the messages: the instructions and declarations, as they are sent. */
export function repair(history: readonly MessageInput[], target: RepairTarget, head = ''): Repaired {
  const walk = new Walk(history, target, head)
  for (const message of history) walk.take(message)
  return { messages: walk.messages, prefix: walk.prefix, notes: [...walk.notes] }
}

/** The calls of one id, which only a history put together by hand repeats. */
interface Asked {
  /** The last message that has such a call */
  by: MessageInput
  /** The result of each call, in order; undefined: the call has none */
  results: (ToolResultPart | undefined)[]
  /** Index of the call that the next result is for */
  open: number
  /** Index of the call that is shown next: how many of them the pass has come by */
  shown: number
}

/** One pass over a history; holds the results of calls by id, and the hash of the messages that are already out. */
class Walk {
  readonly messages: MessageInput[] = []
  readonly notes = new Set<string>()
  /** Hash of the head and all messages so far, each with the hash before it */
  prefix: string
  readonly #target: RepairTarget
  /** Whoever has just given a medium hears of its refusal. */
  readonly #given: ReadonlySet<Part>
  /** By call id */
  readonly #asked = new Map<string, Asked>()
  /** Ids that are taken in what is sent */
  readonly #usedIds = new Set<string>()
  /** By id: the number that the next call with this id gets */
  readonly #numbers = new Map<string, number>()

  constructor(history: readonly MessageInput[], target: RepairTarget, head: string) {
    this.#target = target
    this.#given = new Set(history.findLast(({ role }) => role === 'user')?.parts)
    this.prefix = target.boundThinking ? sha256(head) : ''
    for (const message of history) {
      for (const part of message.parts) {
        if (part.type === 'tool_call' && message.role === 'assistant') this.#ask(part.call_id, message)
        if (part.type === 'tool_result') this.#answer(part)
      }
    }
  }

  #ask(id: string, by: MessageInput): void {
    const asked = this.#asked.get(id) ?? { by, results: [], open: 0, shown: 0 }
    this.#asked.set(id, asked)
    // A later message uses the id again: results from here on are for its call.
    if (asked.by !== by) asked.open = asked.results.length
    asked.by = by
    asked.results.push(undefined)
  }

  #answer(result: ToolResultPart): void {
    const asked = this.#asked.get(result.call_id)
    if (asked && asked.open < asked.results.length) asked.results[asked.open++] = result
  }

  take(message: MessageInput): void {
    if (message.role === 'assistant') return this.#assistant(message)
    const parts: ContentPart[] = []
    // One by one: a hundred thousand arguments, as of a result without its call, overflow the stack.
    for (const part of message.parts) for (const given of this.#givenPart(part)) parts.push(given)
    if (parts.length === 0) return
    if (message.role !== 'system') return this.#push(messageWith(message, 'user', parts))
    if (this.#target.systemMessages) return this.#push(messageWith(message, 'system', parts))
    const texts = parts.flatMap((part) => (part.type === 'text' ? [part.text] : []))
    const media = parts.filter(({ type }) => type !== 'text')
    const text = ['[System message]', ...texts].join('\n')
    this.#push({ role: 'user', parts: [{ type: 'text', text }, ...media] })
  }

  /** Parts of a message that is not the assistant's. A result stays, as text, only if its call is nowhere before it. */
  #givenPart(part: Part): ContentPart[] {
    switch (part.type) {
      case 'text':
        if (isBlank(part.text)) return []
        return [part.provenance ? again(part, { type: 'text', text: part.text }) : part]
      case 'image':
      case 'audio':
      case 'file':
        return [this.#medium(part)]
      case 'tool_result':
        return this.#asked.get(part.call_id)?.shown ? [] : this.#orphan(part)
      case 'tool_call':
      case 'reasoning':
      case 'notice':
        return []
      default:
        return part satisfies never
    }
  }

  #assistant(message: MessageInput): void {
    const parts: AssistantPart[] = []
    const results: ToolResultPart[] = []
    const media: MediaPart[] = []
    for (const part of message.parts) {
      const ready = this.#assistantPart(part)
      if (!ready) continue
      if ('media_type' in ready) media.push(ready)
      else parts.push(ready)
      if (ready.type === 'tool_call' && part.type === 'tool_call') results.push(this.#resultFor(part, ready))
    }
    if (parts.length > 0) this.#push(messageWith(message, 'assistant', parts))
    if (results.length > 0) this.#push({ role: 'tool', parts: results })
    const [first] = media
    if (first) this.#push(again(first, { role: 'user', parts: [ANSWERED, ...media] }))
  }

  #assistantPart(part: Part): AssistantPart | null {
    const provenance = 'provenance' in part ? this.#fitting(part) : undefined
    switch (part.type) {
      case 'text':
        if (isBlank(part.text) && !provenance) return null
        if (provenance || part.provenance?.opaque === undefined) return part
        return again(part, { type: 'text', text: part.text })
      case 'reasoning':
        return provenance ? part : null
      case 'tool_call':
        return again(part, {
          type: 'tool_call',
          call_id: this.#freshId(part.call_id),
          name: exposedName(part.name),
          arguments: part.arguments,
          ...(provenance ? { provenance } : {}),
        })
      case 'image':
      case 'audio':
      case 'file':
        return this.#medium(part)
      case 'tool_result':
      case 'notice':
        return null
      default:
        return part satisfies never
    }
  }

  /**
   * A token goes back only to the provider, model and credential it came from, and, if it is bound to one, with its
   * prefix; a text's may be shared by all of the provider's.
   */
  #fitting(part: TextPart | ReasoningPart | ToolCallPart): Provenance | undefined {
    const { type, provenance } = part
    if (provenance?.opaque === undefined || this.#isRefused(part)) return undefined
    const { provider, model, credential_id, boundThinking, sharedTextTokens } = this.#target
    if (provenance.provider !== provider) return undefined
    const fits =
      provenance.model === model &&
      provenance.credential_id === credential_id &&
      (!boundThinking || provenance.prefix === this.prefix)
    return fits || (type === 'text' && sharedTextTokens) ? provenance : undefined
  }

  /** Ids are unique in what is sent, though a history put together by hand may repeat one. */
  #freshId(id: string): string {
    const legal = legalCallId(id)
    let fresh = legal
    let n = this.#numbers.get(legal) ?? 2
    for (; this.#usedIds.has(fresh); n++) fresh = legalCallId(`${legal}_${n}`)
    this.#usedIds.add(fresh)
    this.#numbers.set(legal, n)
    return fresh
  }

  #resultFor(call: ToolCallPart, ready: ToolCallPart): ToolResultPart {
    const asked = this.#asked.get(call.call_id)
    const found = asked?.results[asked.shown++]
    if (!found) return unanswered(ready)
    const { call_id, name } = ready
    return again(found, { ...withContent(found, this.#content(found)), call_id, name })
  }

  #orphan(part: ToolResultPart): ContentPart[] {
    const head = { type: 'text' as const, text: `[Result of an earlier call of ${part.name}]` }
    return [head, ...structureOf(part), ...this.#content(part)]
  }

  #content({ content }: ToolResultPart): ContentPart[] {
    const items = content.filter((item) => item.type !== 'text' || !isBlank(item.text))
    return items.map((item) => (item.type === 'text' ? item : this.#medium(item)))
  }

  #medium(part: MediaPart): ContentPart {
    const known = asItIs(part)
    if (!known) return this.#named(part, 'is of another type by its bytes')
    if (!this.#given.has(part) && this.#isRefused(known)) return this.#named(known, 'was refused')
    if (this.#target.takesMedia(known)) return known
    const why = part.url === undefined ? 'is not accepted' : 'by URL is not accepted'
    return fileAsText(known) ?? this.#named(part, why)
  }

  #isRefused(part: Part): boolean {
    const { refused } = this.#target
    return refused !== undefined && marksOf(part).some((mark) => refused.has(mark))
  }

  /** The medium named in words, since it cannot be shown. */
  #named(part: MediaPart, why: string): TextPart {
    this.notes.add(`messages: a medium of type ${part.media_type} ${why}; the model is told that it exists`)
    return again(part, { type: 'text', text: mediaAsText(part) })
  }

  #push(message: MessageInput): void {
    this.messages.push(message)
    if (this.prefix === '') return
    this.prefix = sha256([this.prefix, message.role, ...message.parts.map(hashOf)].join(' '))
  }
}

/**
 * Hashes of what a vendor may refuse in a part for good: its token, its media. Not of addresses: these may answer the
 * next time.
 */
export const marksOf = once((part: Part): readonly string[] => {
  if (part.type === 'tool_result') return part.content.flatMap(marksOf)
  const refusable =
    'provenance' in part ? part.provenance?.opaque : 'data' in part ? asItIs(part)?.data : undefined
  return refusable === undefined ? [] : [sha256(refusable)]
})

/**
 * Precedes the media of an answer. They are shown as a user's: OpenAI and Anthropic take none from the assistant, and
 * Gemini 3 none without their signatures (vercel/ai#10462).
 */
const ANSWERED: TextPart = { type: 'text', text: '[From the answer of the assistant:]' }

/** The result with this content, in which texts may replace some of the result's media. */
export function withContent(result: ToolResultPart, content: ContentPart[]): ToolResultPart {
  const { structured, ...plain } = result
  if (structured === undefined) return { ...result, content }
  const own = new Set(result.content)
  const isNamed = content.some((part) => part.type === 'text' && !own.has(part))
  if (!isNamed) return { ...result, content }
  // Adapters send a result's texts or its structure: with both as texts, neither hides the other.
  return { ...plain, content: [...structureOf(result), ...content] }
}

/** A result's structure as a text, if the result has no text of its own. */
function structureOf({ content, structured }: ToolResultPart): TextPart[] {
  const hasWords = content.some((part) => part.type === 'text' && !isBlank(part.text))
  return structured === undefined || hasWords ? [] : [{ type: 'text', text: JSON.stringify(structured) }]
}

/** The message itself if its parts and role are unchanged. */
export const messageWith = (
  message: MessageInput,
  role: MessageInput['role'],
  parts: Part[],
): MessageInput =>
  message.role === role && isSame(message.parts, parts) ? message : again(message, { role, parts })

/** The last thing that each part or message became, or the message that a part begins. */
const made = new WeakMap<object, object>()

/** What was made of `from` last time, if it equals `fresh`: a history is repaired again for each step. */
function again<T extends Part | MessageInput>(from: Part | MessageInput, fresh: T): T {
  const known = made.get(from) as T | undefined
  if (known && isAlike(known, fresh)) return known
  made.set(from, fresh)
  return fresh
}

function isAlike<T extends object>(one: T, other: T): boolean {
  const names = Object.keys(one) as (keyof T)[]
  return names.length === Object.keys(other).length && names.every((name) => isSame(one[name], other[name]))
}

/** Lists are the same if their items are. */
const isSame = (one: unknown, other: unknown): boolean =>
  one === other ||
  (Array.isArray(one) &&
    Array.isArray(other) &&
    one.length === other.length &&
    one.every((item, i) => item === other[i]))

const hashOf = once((part: Part) => sha256(JSON.stringify(withoutPrefix(part))))

/**
 * A token's own prefix hash is bookkeeping, not content; a tool's argument of that name is content. Provenance
 * without a token goes nowhere.
 */
function withoutPrefix(part: Part): unknown {
  if (!('provenance' in part) || !part.provenance) return part
  const { provenance: whole, ...rest } = part
  if (whole.opaque === undefined) return rest
  const { prefix: _, ...provenance } = whole
  return { ...rest, provenance }
}

const unanswered = (call: ToolCallPart): ToolResultPart => ({
  type: 'tool_result',
  call_id: call.call_id,
  name: call.name,
  content: [{ type: 'text', text: 'No result of this call was recorded; it may or may not have run.' }],
  is_error: true,
  outcome: 'outcome_unknown',
})
