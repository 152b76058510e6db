/**
 * What each family of OpenAI models accepts, as data. The first row that matches counts; an unknown
 * model is taken for one of the newest family.
 */
import type { Capabilities } from '../../src/chat/repair.ts'
import type { Effort, ModelRequest, ModelSettings, ReportedModel, SchemaProfile } from '../../src/provider.ts'
import { object, objects, string } from '../json.ts'
import { formOf } from './input.ts'

interface Family {
  pattern: RegExp
  /**
   * Takes `reasoning` and `include: [reasoning.encrypted_content]`; the others answer both with a 400. Refuses
   * temperature and top_p (OpenHands/software-agent-sdk#1837).
   */
  reasoning: boolean
  /** Efforts from least to most; empty: none may be named. */
  efforts: readonly Effort[]
  /**
   * Takes temperature and top_p while its effort is none. `unasked`: so also if the request names no effort, since none
   * is its default. `asked`: only if the request asks for none (as the API answered in UKGovernmentBEIS/inspect_ai#5242,
   * and as developers.openai.com says under "Using GPT-6"; BerriAI/litellm#17011 and langchain-ai/langchain#35424 once
   * took the first kind for the second).
   */
  samplesAtNone?: 'unasked' | 'asked'
  /** Takes images (and pages of PDF files) */
  vision: boolean
}

const UP_TO_HIGH: readonly Effort[] = ['low', 'medium', 'high']
const UP_TO_XHIGH: readonly Effort[] = ['none', ...UP_TO_HIGH, 'xhigh']
const NEWEST: Family = {
  pattern: /^/,
  reasoning: true,
  efforts: ['none', 'low', 'medium', 'high', 'xhigh', 'max'],
  vision: true,
}

/**
 * Sources: wire/openai.md 3.1 and 9 (minimal, none, max); the values that the API lists in its refusals:
 * openai/openai-agents-python#2089 (gpt-5.1: none to high), learn.microsoft.com on the type ReasoningEffort (gpt-5-pro
 * only high, no none before gpt-5.1, xhigh after gpt-5.1-codex-max); the later pro and chat models:
 * anomalyco/opencode#26268, Laisky/one-api#266, pydantic/pydantic-ai#6414; gpt-6.2: the page "Models" of
 * developers.openai.com.
 */
const FAMILIES: readonly Family[] = [
  plain(/^gpt-5-chat/, true),
  { pattern: /^gpt-5\.\d-chat/, reasoning: true, efforts: ['medium'], vision: true },
  plain(/^(gpt-4-?o|gpt-4\.[15]|gpt-4-turbo|chatgpt-4o)/, true),
  plain(/^(gpt-4|gpt-3\.5)/, false),
  { pattern: /^o(1-mini|1-preview|3-mini)/, reasoning: true, efforts: UP_TO_HIGH, vision: false },
  { pattern: /^o\d/, reasoning: true, efforts: UP_TO_HIGH, vision: true },
  { pattern: /^gpt-5-pro/, reasoning: true, efforts: ['high'], vision: true },
  { pattern: /^gpt-5-codex/, reasoning: true, efforts: UP_TO_HIGH, vision: true },
  { pattern: /^gpt-5(-|$)/, reasoning: true, efforts: ['minimal', ...UP_TO_HIGH], vision: true },
  { pattern: /^gpt-5\.1-codex-max/, reasoning: true, efforts: [...UP_TO_HIGH, 'xhigh'], vision: true },
  { pattern: /^gpt-5\.1-codex/, reasoning: true, efforts: UP_TO_HIGH, vision: true },
  { ...NEWEST, pattern: /^gpt-5\.1/, efforts: ['none', ...UP_TO_HIGH], samplesAtNone: 'unasked' },
  { pattern: /^gpt-5\.\d-pro/, reasoning: true, efforts: ['medium', 'high', 'xhigh'], vision: true },
  { ...NEWEST, pattern: /^gpt-5\.[2-4](?!-codex)/, efforts: UP_TO_XHIGH, samplesAtNone: 'unasked' },
  { ...NEWEST, pattern: /^gpt-5\.[2-4]/, efforts: UP_TO_XHIGH },
  { ...NEWEST, pattern: /^gpt-5\.5/, efforts: UP_TO_XHIGH, samplesAtNone: 'asked' },
  { ...NEWEST, pattern: /^gpt-6(\.[12]-sol|(\.2)?-astra)/, efforts: [...UP_TO_HIGH, 'xhigh', 'max'] },
  { ...NEWEST, pattern: /^gpt-(5\.6|6)/, samplesAtNone: 'asked' },
  NEWEST,
]

function plain(pattern: RegExp, vision: boolean): Family {
  return { pattern, reasoning: false, efforts: [], vision }
}

export function familyOf(model: string): Family {
  const base = baseOf(model)
  return FAMILIES.find(({ pattern }) => pattern.test(base)) ?? NEWEST
}

/**
 * The model's own name in that of a fine-tuned model (`ft:gpt-4o-…:org::id`), a gateway (`openai/gpt-4o`:
 * vercel/ai#11828; `openai.gpt-5.5` at Bedrock), or a deployment (`ptu-gpt-5.4-mini`: bolna-ai/bolna#882; `gpt4o-prod`).
 * Of deployments the version is often written without its dot (`gpt-41`: QuantumNous/new-api#980; `gpt-4-1-mini`).
 */
function baseOf(model: string): string {
  const [, base = model] = /(?:^|[^a-z\d])((?:gpt-?\d|chatgpt-|o\d).*)/i.exec(model) ?? []
  return base
    .toLowerCase()
    .replace(/^gpt-?(?=\d)/, 'gpt-')
    .replace(/^(gpt-\d)-?(?=\d(?!\d))/, '$1.')
}

const RANK: readonly Effort[] = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']

/**
 * The effort to ask for: the wanted one, or the nearest that the model has (between two, the higher). Null if the model
 * takes none. If the models endpoint lists efforts, these overrule the table.
 */
export function effortFor(
  wanted: Effort,
  { model, reported }: Pick<ModelRequest, 'model' | 'reported'>,
  refused?: Effort,
): Effort | null {
  const family = familyOf(model)
  const listed = RANK.filter((effort) => reported?.efforts?.includes(effort))
  const known = family.reasoning && reported?.efforts ? listed : family.efforts
  const accepted = known.filter((effort) => effort !== refused)
  const distance = (effort: Effort) => Math.abs(RANK.indexOf(effort) - RANK.indexOf(wanted))
  const nearer = (best: Effort, next: Effort) => (distance(next) <= distance(best) ? next : best)
  return accepted.length === 0 ? null : accepted.reduce(nearer)
}

/** The model has refused the setting, or the value that this request asks for. */
export function refuses(
  name: keyof ModelSettings,
  { settings, reported }: Pick<ModelRequest, 'settings' | 'reported'>,
): boolean {
  const refused = reported?.refused?.[name]
  return refused !== undefined && (refused === 'any' || refused === settings[name])
}

/**
 * Names of OpenAI's models, also with a gateway's prefix or in the name of a deployment; not `gpt-oss`. Servers of other
 * models lose an instruction amid the conversation, or refuse the request: Ollama and StepFun drop `developer`
 * (ollama/ollama#18305, earendil-works/pi#5456), DeepInfra and llama.cpp's stricter templates refuse it, and Qwen's take
 * no `system` after the beginning either (BerriAI/litellm#39852). They all take a user's message.
 */
const OF_OPENAI = /\b(gpt-?\d|o\d|chatgpt|codex|computer-use)/i

export function publicCapabilities(model: string): Capabilities {
  const { vision } = familyOf(model)
  return {
    ...commonTo(model),
    systemMessages: OF_OPENAI.test(model),
    takesMedia(part) {
      const form = formOf(part)
      if (vision) return form !== null
      // "Only models that support both text and image inputs can accept PDF files" (egoist/chatwise-releases#383).
      return form === 'input_file' && part.media_type !== 'application/pdf'
    },
  }
}

/** No files (vybestack/llxprt-code#2608). */
export function chatgptCapabilities(model: string): Capabilities {
  const { vision } = familyOf(model)
  const takesMedia: Capabilities['takesMedia'] = (part) => vision && formOf(part) === 'input_image'
  return { ...commonTo(model), systemMessages: true, takesMedia }
}

/**
 * A text's token is its phase, a plain word: models since gpt-5.3-codex want it back on every text of an answer,
 * whichever model wrote it, and may stop too early without it (the SDK's EasyInputMessage).
 */
const commonTo = (model: string) => ({
  boundThinking: false,
  sharedTextTokens: versionOf(model) >= 5.4 || baseOf(model).startsWith('gpt-5.3-codex'),
})

/**
 * From GPT-6.2 on, `instructions` follow the input. There no cache holds them, and the model reads them as words on this
 * one request (developers.openai.com, "Using GPT-6.2").
 */
export const appendsInstructions = (model: string): boolean => versionOf(model) >= 6.2

/** Of a GPT model, by its name; 0 for any other model. */
const versionOf = (model: string): number => Number(/^gpt-(\d(?:\.\d)?)(?!\d)/.exec(baseOf(model))?.[1] ?? 0)

/**
 * What a non-strict function schema may hold (wire/openai.md 5). Codex rewrites `const` and gives every
 * array one `items`; references into local `$defs` stay.
 */
export const schemaProfile: SchemaProfile = {
  refs: true,
  takes: (keyword) => keyword !== 'const' && keyword !== 'prefixItems',
  propertyPattern: /^[\s\S]+$/,
  // The API reads Python's patterns, but no lookaround or backreference: for one such pattern it refuses the whole
  // request (nicobailon/pi-interactive-shell#69, BerriAI/litellm#40358).
  unreadPattern: /\(\?[=!<]|\\[pPkc1-9]|\\u\{|\[\^?\]/,
}

/** `GET …/codex/models`: efforts, already filtered by plan (wire/openai.md 9). The public API's list has ids only. */
export function parseChatgptModels(body: unknown): ReportedModel[] {
  return objects(object(body).models).flatMap((model) => {
    const id = string(model.slug)
    if (id === undefined || (model.visibility !== undefined && model.visibility !== 'list')) return []
    const efforts = objects(model.supported_reasoning_levels).flatMap(({ effort }) => string(effort) ?? [])
    return [{ id, ...(efforts.length > 0 ? { efforts } : {}) }]
  })
}
