/**
 * What the emulated models take. The table is independent of the adapter's, so that neither can hide a mistake of the
 * other (wire/anthropic.md 3.2 to 3.5, 4.4, 9).
 */

export interface EmulatedModel {
  id: string
  types: ('adaptive' | 'enabled' | 'disabled' | 'between_tools')[]
  /** The model thinks if the request does not say */
  unasked: boolean
  efforts: string[]
  /** Highest effort allowed with thinking off; null: no such limit */
  effortWhenOff: 'high' | null
  forced: boolean
  sampling: boolean
  /** The model takes `display`; this is the default */
  display: 'summarized' | 'omitted'
  prefill: boolean
  systemRole: boolean
  /** Signatures hold only under the prefix under which they were made */
  bound: boolean
  window: number
  output: number
}

type Row = [id: string, row: Partial<EmulatedModel>]

const LEVELS = ['low', 'medium', 'high', 'xhigh', 'max']

const FROM_5: Partial<EmulatedModel> = { unasked: true, systemRole: true }
const FROM_5_1: Partial<EmulatedModel> = { ...FROM_5, types: ['adaptive'], forced: false, bound: true }
const OF_4_5: Partial<EmulatedModel> = {
  types: ['enabled', 'disabled'],
  efforts: [],
  sampling: true,
  display: 'summarized',
  prefill: true,
  window: 200_000,
  output: 64_000,
}
const OF_4_6: Partial<EmulatedModel> = {
  types: ['adaptive', 'enabled', 'disabled'],
  efforts: ['low', 'medium', 'high', 'max'],
  sampling: true,
  display: 'summarized',
}

const ROWS: Row[] = [
  ['claude-fable-5-2', FROM_5_1],
  ['claude-mythos-5-2', FROM_5_1],
  ['claude-haiku-5-5', { ...FROM_5_1, types: ['adaptive', 'disabled'], effortWhenOff: 'high', forced: true }],
  // platform.claude.com, "What's new in Claude Sonnet 5.5"
  ['claude-sonnet-5-5', { ...FROM_5_1, types: ['adaptive', 'between_tools'], effortWhenOff: 'high' }],
  ['claude-opus-5-5', FROM_5_1],
  ['claude-fable-5-1', FROM_5_1],
  ['claude-mythos-5-1', FROM_5_1],
  ['claude-fable-5', { ...FROM_5, types: ['adaptive'] }],
  ['claude-mythos-5', { ...FROM_5, types: ['adaptive'] }],
  ['claude-opus-5', { ...FROM_5, effortWhenOff: 'high' }],
  ['claude-sonnet-5', { unasked: true }],
  ['claude-opus-4-8', { systemRole: true }],
  ['claude-opus-4-7', {}],
  ['claude-opus-4-6', OF_4_6],
  ['claude-sonnet-4-6', OF_4_6],
  ['claude-opus-4-5', { ...OF_4_5, efforts: ['low', 'medium', 'high'] }],
  ['claude-haiku-4-5', OF_4_5],
]

export const MODELS: readonly EmulatedModel[] = ROWS.map(([id, row]) => ({
  id,
  types: ['adaptive', 'disabled'],
  unasked: false,
  efforts: LEVELS,
  effortWhenOff: null,
  forced: true,
  sampling: false,
  display: 'omitted',
  prefill: false,
  systemRole: false,
  bound: false,
  window: 1_000_000,
  output: 128_000,
  ...row,
}))

/** A model by its id, with or without a snapshot's date. */
export const modelOf = (id: string): EmulatedModel | undefined =>
  MODELS.find((model) => model.id === id.replace(/-\d{8}$/, ''))

/** A model as `GET /v1/models` shows it. */
export function modelInfo({ id, types, efforts, window, output }: EmulatedModel) {
  const is = (supported: boolean) => ({ supported })
  const thinking = ['adaptive', 'between_tools', 'disabled', 'enabled'] as const
  return {
    type: 'model',
    id,
    display_name: id.replace(/^claude-/, 'Claude ').replaceAll('-', ' '),
    created_at: '2026-01-01T00:00:00Z',
    max_input_tokens: window,
    max_tokens: output,
    lifecycle: 'active',
    deprecated_at: null,
    retires_at: null,
    line: id.split('-')[1] ?? null,
    capabilities: {
      effort: {
        supported: efforts.length > 0,
        ...Object.fromEntries(LEVELS.map((level) => [level, is(efforts.includes(level))])),
      },
      image_input: is(true),
      pdf_input: is(true),
      thinking: {
        supported: true,
        types: Object.fromEntries(thinking.map((type) => [type, is(types.includes(type))])),
      },
    },
  }
}
