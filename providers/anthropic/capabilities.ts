/**
 * What each model family takes: one table, the only place that knows a model's name. What the models
 * endpoint reports overrides it. Sources: wire/anthropic.md 3.2 to 3.5 and 4.4; mid-conversation system
 * messages of the 5.5 generation by langchain-ai/langchainjs release @langchain/anthropic 1.5.13.
 */
import type { MediaPart } from '../../src/chat/message.ts'
import type { Capabilities } from '../../src/chat/repair.ts'
import type { ReportedModel } from '../../src/provider.ts'
import { type Json, number, object, objects, present, string } from '../json.ts'
import { mediaBlocks } from './messages.ts'
import type { DocumentBlock, WireEffort } from './wire.ts'

export interface Family {
  /** Accepted values of `thinking.type` */
  thinking: readonly string[]
  /** Thinks when the request says nothing about it; null: not known */
  thinksUnasked: boolean | null
  /** `thinking.display` exists, and without it the text of thinking stays empty */
  display: boolean
  /** Accepted values of `output_config.effort` */
  efforts: readonly string[]
  sampling: boolean
  forcedToolChoice: boolean
  boundThinking: boolean
  /** It takes its thinking back only with a signature */
  signsThinking: boolean
  /** The request may say that thinking whose prefix has changed is dropped */
  dropsUnbound: boolean
  systemMessages: boolean
  /** Which files it is shown as documents; a file of text is otherwise shown as text */
  documents: readonly DocumentBlock['source']['type'][]
  /** Highest `max_tokens` accepted; null if unknown */
  maxOutput: number | null
  /** Most images and documents in a request */
  maxImages: number
}

/** From least to most. */
export const EFFORTS: readonly WireEffort[] = ['low', 'medium', 'high', 'xhigh', 'max']

const GENERATION_4_5: Family = {
  thinking: ['enabled', 'disabled'],
  thinksUnasked: false,
  display: false,
  efforts: [],
  sampling: true,
  forcedToolChoice: true,
  boundThinking: false,
  signsThinking: true,
  dropsUnbound: false,
  systemMessages: false,
  documents: ['base64', 'url', 'text'],
  maxOutput: 64_000,
  maxImages: 100,
}
const GENERATION_4_6: Family = {
  ...GENERATION_4_5,
  thinking: ['adaptive', 'enabled', 'disabled'],
  efforts: ['low', 'medium', 'high', 'max'],
  maxOutput: 128_000,
  maxImages: 600,
}
const GENERATION_4_7: Family = {
  ...GENERATION_4_6,
  thinking: ['adaptive', 'disabled'],
  display: true,
  efforts: EFFORTS,
  sampling: false,
}
const GENERATION_5: Family = { ...GENERATION_4_7, thinksUnasked: true }
const FABLE_5: Family = { ...GENERATION_5, thinking: ['adaptive'], systemMessages: true }
/** From Fable 5.1 on a signature is bound to the prefix (wire/anthropic.md 4.4, "Preserved thinking"). */
const BOUND: Family = { ...FABLE_5, boundThinking: true, dropsUnbound: true, forcedToolChoice: false }

const FAMILIES: Readonly<Record<string, Family>> = {
  'opus-4-5': GENERATION_4_5,
  'sonnet-4-5': GENERATION_4_5,
  'haiku-4-5': GENERATION_4_5,
  'opus-4-6': GENERATION_4_6,
  'sonnet-4-6': GENERATION_4_6,
  'opus-4-7': GENERATION_4_7,
  'opus-4-8': { ...GENERATION_4_7, systemMessages: true },
  'sonnet-5': GENERATION_5,
  'opus-5': { ...GENERATION_5, systemMessages: true },
  'fable-5': FABLE_5,
  'mythos-5': FABLE_5,
  'fable-5-1': BOUND,
  'mythos-5-1': BOUND,
  'fable-5-2': BOUND,
  'mythos-5-2': BOUND,
  'opus-5-5': BOUND,
  'sonnet-5-5': { ...BOUND, thinking: ['adaptive', 'between_tools'] },
  'haiku-5-5': { ...BOUND, thinking: ['adaptive', 'disabled'], forcedToolChoice: true },
}

/** An unknown Claude is taken for a newer one: it gets nothing that any of the newest refuses. */
const NEWER: Family = { ...BOUND, systemMessages: false, maxOutput: null }
/**
 * An id that is not a Claude's comes from a proxy: treated like a newer Claude, and sent nothing that was not asked
 * for. Others refuse documents of text (Stack-Cairn/LiveAgent#726).
 */
const FOREIGN: Family = {
  ...NEWER,
  thinksUnasked: null,
  boundThinking: false,
  dropsUnbound: false,
  documents: ['base64', 'url'],
}
/** Models of vendors who sign little or nothing, and miss thinking that does not come back (blocks.ts) */
const UNSIGNED: Family = { ...FOREIGN, signsThinking: false }
/** Documents are "Not Supported", and dropped without a word (maximhq/bifrost#6741). */
const DEEPSEEK: Family = { ...UNSIGNED, documents: [] }

/**
 * `claude-<line>-<version>`, with or without a snapshot's date; proxies write `4.6`. Clouds and gateways have names of
 * their own around it: `us.anthropic.claude-sonnet-4-5-20250929-v1:0`, `anthropic/claude-opus-4.6`,
 * `databricks-claude-opus-4-7` (databricks/unity-gateway#102). Not a `…:thinking`, which thinks unasked.
 */
const CLAUDE = /^(.*[./:-])?claude-([a-z]+-\d+(?:[-.]\d{1,2})?)(?:[-@]\d{8})?(?:-v\d+)?(?::(?!thinking)\w+)?$/

function tabled(model: string): Family {
  const [, prefix, line = ''] = CLAUDE.exec(model) ?? []
  const family = FAMILIES[line.replace('.', '-')]
  if (family) return prefix === undefined ? family : relayed(family)
  if (model.startsWith('claude-')) return NEWER
  if (model.startsWith('deepseek-')) return DEEPSEEK
  return /deepseek|glm|kimi|mimo/i.test(model) ? UNSIGNED : FOREIGN
}

/**
 * Of a Claude behind a cloud or a gateway: some do not know what is Anthropic's alone, count `max_tokens` as used, or
 * have it think though the request says nothing of it.
 */
const relayed = (family: Family): Family => ({
  ...family,
  thinksUnasked: family.thinksUnasked || null,
  dropsUnbound: false,
  systemMessages: false,
  documents: FOREIGN.documents,
  maxOutput: null,
})

/** The model's family with what the vendor reports of this model laid over it. */
export function familyOf(model: string, reported?: ReportedModel): Family {
  const family = tabled(model)
  return {
    ...family,
    thinking: reported?.thinking_types ?? family.thinking,
    efforts: reported?.efforts ?? family.efforts,
    dropsUnbound: family.dropsUnbound && reported?.block_binding !== false,
    maxOutput: reported?.max_output_tokens ?? family.maxOutput,
    maxImages: reported?.max_images ?? family.maxImages,
    systemMessages: family.systemMessages && reported?.system_messages !== false,
    forcedToolChoice: family.forcedToolChoice && reported?.refused?.tool_choice === undefined,
  }
}

export function capabilitiesOf(model: string, reported?: ReportedModel): Capabilities {
  const { boundThinking, systemMessages, documents } = familyOf(model, reported)
  const takesMedia = (part: MediaPart) =>
    mediaBlocks(part).some((block) => block.type !== 'document' || documents.includes(block.source.type))
  return { boundThinking, takesMedia, systemMessages }
}

/** Reads the body of `GET /v1/models` (wire/anthropic.md 9). */
export function parseModels(body: unknown): ReportedModel[] {
  return objects(object(body).data).flatMap((model) => {
    const id = string(model.id)
    return id === undefined ? [] : [reportedModel(id, model)]
  })
}

function reportedModel(id: string, model: Json): ReportedModel {
  const { thinking, effort } = object(model.capabilities)
  const { types } = object(thinking)
  const accepted = supported(types)
  // In the summer of 2026 the list named only `enabled` and `adaptive`, also of models that take `disabled`.
  const unnamed = tabled(id).thinking.filter((type) => object(types)[type] === undefined)
  return {
    id,
    ...present({
      max_output_tokens: number(model.max_tokens),
      thinking_types: accepted && [...accepted, ...unnamed],
      efforts: supported(effort),
    }),
  }
}

/** The names whose `{supported}` is true; undefined if the vendor says nothing. */
function supported(capability: unknown): string[] | undefined {
  if (typeof capability !== 'object' || capability === null) return undefined
  return Object.entries(capability).flatMap(([name, value]) =>
    object(value).supported === true ? [name] : [],
  )
}
