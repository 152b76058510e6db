/**
 * Gemini's model families as data: which thinking setting a model takes and with which values (wire/gemini.md 8.2),
 * whether it still reads sampling fields, and whether it has the request form of Gemini 3 (call ids, signed calls,
 * media inside function responses).
 */
import { isPlainText } from '../../src/chat/media.ts'
import type { Capabilities } from '../../src/chat/repair.ts'
import type { Effort, ModelRequest, ReportedModel } from '../../src/provider.ts'
import { list, number, object, objects, present, string } from '../json.ts'

const LEVELS = ['MINIMAL', 'LOW', 'MEDIUM', 'HIGH', 'XHIGH'] as const
type Level = (typeof LEVELS)[number]

type Thinking =
  | { form: 'none' }
  /** In tokens; `canStop`: 0 switches thinking off; `offByDefault`: the model does not think unless asked to */
  | { form: 'budget'; min: number; max: number; canStop: boolean; offByDefault?: true }
  | { form: 'level'; levels: readonly Level[] }

interface Family {
  thinking: Thinking
  /** The model reads temperature and topP. 3.5 Flash-Lite, and all from 3.6 on, ignore them or refuse the request (8.2). */
  sampling: boolean
  /**
   * The forms that came with Gemini 3: ids on calls and responses (4.5), signatures required on calls
   * (4.4), media in `functionResponse.parts` (4.2).
   */
  gemini3: boolean
}

const NO_THINKING: Thinking = { form: 'none' }
const FROM_LOW: Thinking = { form: 'level', levels: ['LOW', 'MEDIUM', 'HIGH'] }
const FROM_MINIMAL: Thinking = { form: 'level', levels: ['MINIMAL', 'LOW', 'MEDIUM', 'HIGH'] }
const BUDGET: Thinking = { form: 'budget', min: 0, max: 24_576, canStop: true }

const older = (thinking: Thinking): Family => ({ thinking, sampling: true, gemini3: false })
const third = (thinking: Thinking): Family => ({ thinking, sampling: true, gemini3: true })
const recent = (thinking: Thinking): Family => ({ thinking, sampling: false, gemini3: true })

/** First match wins. */
const FAMILIES: readonly (readonly [RegExp, Family])[] = [
  [/^gemini-(1|2\.0)/, older(NO_THINKING)],
  [/^gemini-2\.5-.*(image|tts)/, older(NO_THINKING)],
  [/^gemini-2\.5-pro/, older({ form: 'budget', min: 128, max: 32_768, canStop: false })],
  [
    /^gemini-2\.5-flash-lite/,
    older({ form: 'budget', min: 512, max: 24_576, canStop: true, offByDefault: true }),
  ],
  [/^gemini-2/, older(BUDGET)],
  [/^gemini-3-pro/, third({ form: 'level', levels: ['LOW', 'HIGH'] })],
  // router-for-me/CLIProxyAPI#1734
  [/^gemini-3(\.[0-5])?-flash(-lite)?-image/, third({ form: 'level', levels: ['MINIMAL', 'HIGH'] })],
  [/^gemini-3\.5-flash-lite/, recent(FROM_MINIMAL)],
  [/^gemini-3(\.[0-5])?-flash/, third(FROM_MINIMAL)],
  [/^gemini-3(\.[0-5])?-/, third(FROM_LOW)],
  [/^gemini-3\.6-/, recent(FROM_MINIMAL)],
  // Of all models only these have XHIGH (their pages at docs.cloud.google.com and docs.oxen.ai).
  [/^gemini-4-(hydrogen|neon)/, recent({ form: 'level', levels: ['LOW', 'MEDIUM', 'HIGH', 'XHIGH'] })],
  [/^gemma-4/, older({ form: 'level', levels: ['MINIMAL', 'HIGH'] })],
  [/^gemma-/, older(NO_THINKING)],
]

/** 3.7, 3.8, the others of 4, and the model of any name or alias (`gemini-flash-latest`) that is not listed. */
const NEWEST = recent(FROM_LOW)

/** The bare id: the public API lists models as `models/<id>`. */
export const bareModel = (model: string): string => model.replace(/^models\//, '')

/** The first row that matches; an unknown model is taken for one of the newest family. */
export const familyOf = (model: string): Family =>
  FAMILIES.find(([name]) => name.test(bareModel(model)))?.[1] ?? NEWEST

/**
 * Whether the request has Gemini 3's forms. A newer model may answer under an older id: from 2026-12-01 on, Google
 * serves `gemini-2.5-pro` and `gemini-2.5-flash` with newer models (8.2).
 */
export const isGemini3 = (model: string, reported?: ReportedModel): boolean =>
  familyOf(model).gemini3 || reported?.signed_calls === true

/**
 * What Gemini reads: the images that its page on image understanding names, sound, video, PDF, and text as `text/plain`
 * (contents.ts). For any other type, such as GIF or SVG, Gemini refuses the whole request ("Unsupported MIME type") and
 * every later one of the conversation (microsoft/vscode#286628, google/adk-python#5693).
 */
const READABLE = /^image\/(png|jpeg|webp|heic|heif)$|^(audio|video)\/|^application\/pdf$/

const isReadable = (type: string): boolean => READABLE.test(type) || isPlainText(type)

/** `urlMedia`: `fileData` with a URL is read; Code Assist has only `inlineData` (wire/gemini.md 9.1). */
export function capabilities(model: string, urlMedia: boolean): Capabilities {
  const isGemma = bareModel(model).startsWith('gemma-')
  return {
    boundThinking: false,
    takesMedia: ({ type, media_type, url }) =>
      isReadable(media_type) && (urlMedia || url === undefined) && (!isGemma || type === 'image'),
    systemMessages: false,
  }
}

/** Highest `maxOutputTokens`: as reported, else by name; undefined if unknown (8.1). */
export function mostOutput(model: string, reported?: ReportedModel): number | undefined {
  const name = bareModel(model)
  const known = name.startsWith('gemini-') ? 65_536 : undefined
  return reported?.max_output_tokens ?? (/^gemini-(1|2\.0)/.test(name) ? 8192 : known)
}

export interface ThinkingConfig {
  includeThoughts: boolean
  thinkingBudget?: number
  thinkingLevel?: Level
}

/**
 * The `thinkingConfig` for the requested effort: a budget or a level, never both (a 400, wire/gemini.md 8.2). With a note
 * if the model has no such effort. Without an effort the vendor's default applies.
 */
export function thinkingConfig(
  { model, settings, reported }: Pick<ModelRequest, 'model' | 'settings' | 'reported'>,
  notes: string[] = [],
): ThinkingConfig | undefined {
  const effort = settings.reasoning?.effort
  const { thinking } = familyOf(model)
  if (thinking.form === 'none' || reported?.efforts?.length === 0) {
    if (effort !== undefined && effort !== 'none') notes.push('reasoning.effort: not accepted by this model')
    return undefined
  }
  if (thinking.form === 'budget') return budgetConfig(thinking, effort, reported, notes)
  return effort === undefined ? { includeThoughts: true } : levelConfig(thinking.levels, effort, notes)
}

/** Tokens for an effort, by Google's own table for OpenAI's `reasoning_effort`; bounded by the family. */
const BUDGETS: Record<Exclude<Effort, 'none'>, number> = {
  minimal: 512,
  low: 1024,
  medium: 8192,
  high: 24_576,
  xhigh: Number.POSITIVE_INFINITY,
  max: Number.POSITIVE_INFINITY,
}

function budgetConfig(
  thinking: Extract<Thinking, { form: 'budget' }>,
  effort: Effort | undefined,
  reported: ReportedModel | undefined,
  notes: string[],
): ThinkingConfig | undefined {
  // Asking a model that is not thinking for its thoughts is refused ("include_thoughts is only enabled
  // when thinking is enabled").
  if (effort === undefined) return thinking.offByDefault ? undefined : { includeThoughts: true }
  if (effort !== 'none') {
    const thinkingBudget = Math.max(thinking.min, Math.min(thinking.max, BUDGETS[effort]))
    return { includeThoughts: true, thinkingBudget }
  }
  if (reported?.efforts?.includes('none') === false) {
    notes.push('reasoning.effort: this model cannot stop thinking')
    return undefined
  }
  if (thinking.canStop) return { includeThoughts: false, thinkingBudget: 0 }
  const { min } = thinking
  notes.push(`reasoning.effort: this model cannot stop thinking; its least budget, ${min}, is asked for`)
  return { includeThoughts: true, thinkingBudget: min }
}

const WANTED: Record<Effort, Level> = {
  none: 'MINIMAL',
  minimal: 'MINIMAL',
  low: 'LOW',
  medium: 'MEDIUM',
  high: 'HIGH',
  xhigh: 'XHIGH',
  max: 'XHIGH',
}

/** The model's level nearest to the wanted one; of two equally near, the higher. */
function levelConfig(levels: readonly Level[], effort: Effort, notes: string[]): ThinkingConfig {
  const wanted = WANTED[effort]
  const distance = (level: Level) => Math.abs(LEVELS.indexOf(level) - LEVELS.indexOf(wanted))
  const level = levels.reduce((best, next) => (distance(next) <= distance(best) ? next : best))
  if (level.toLowerCase() !== effort)
    notes.push(`reasoning.effort: this model has no level ${effort}; ${level} is asked for`)
  return { includeThoughts: true, thinkingLevel: level }
}

/** Body of `GET /models` (wire/gemini.md 9.2): the models that generate content, as the vendor knows them. */
export function parseModels(body: unknown): ReportedModel[] {
  return objects(object(body).models).flatMap((model) => {
    const name = string(model.name)
    if (!name || !list(model.supportedGenerationMethods).includes('generateContent')) return []
    const max_output_tokens = number(model.outputTokenLimit)
    // The list names no levels, only whether a model thinks; proto JSON leaves `false` out.
    const efforts = model.thinking === true ? undefined : []
    return [{ id: bareModel(name), ...present({ max_output_tokens, efforts }) }]
  })
}
