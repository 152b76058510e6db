/** The emulated Gemini's models and what each takes (wire/gemini.md 8). Independent of the adapter's table. */

export interface Traits {
  /** Gemini 3 and newer: calls have ids, signatures are checked, results may have media */
  signed: boolean
  /** Wants the model's words signed, too */
  signedTexts: boolean
  /** Refuses sampling fields and a request that ends with a model turn */
  newest: boolean
  levels: readonly string[]
  budget: { min: number; max: number; off: boolean } | null
  /** Does not think without a budget */
  idle: boolean
  /** Takes any budget but 0 */
  cannotStop: boolean
  output: number
}

const MODELS: readonly (readonly [RegExp, Partial<Traits>])[] = [
  [/^gemini-2\.0-/, { output: 8192 }],
  [/^gemini-2\.5-pro/, { budget: { min: 128, max: 32_768, off: false } }],
  [/^gemini-2\.5-flash-lite/, { budget: { min: 512, max: 24_576, off: true }, idle: true }],
  [/^gemini-(2\.5-flash|robotics-er-1\.5)/, { budget: { min: 0, max: 24_576, off: true } }],
  [/^gemini-3-pro-preview$/, { signed: true, levels: ['LOW', 'HIGH'] }],
  [/^gemini-3-pro-image$/, { signed: true, signedTexts: true, levels: ['LOW', 'HIGH'] }],
  [/^gemini-3\.1-pro-preview/, { signed: true, levels: ['LOW', 'MEDIUM', 'HIGH'] }],
  [
    /^gemini-3\.5-flash-lite$/,
    { signed: true, newest: true, levels: ['MINIMAL', 'LOW', 'MEDIUM', 'HIGH'], cannotStop: true },
  ],
  [
    /^gemini-3(\.1|\.5)?-flash(-lite)?(-preview)?$/,
    { signed: true, levels: ['MINIMAL', 'LOW', 'MEDIUM', 'HIGH'] },
  ],
  [/^gemini-3\.1-flash(-lite)?-image$/, { signed: true, levels: ['MINIMAL', 'HIGH'] }],
  [/^gemini-3\.6-flash$/, { signed: true, newest: true, levels: ['MINIMAL', 'LOW', 'MEDIUM', 'HIGH'] }],
  [
    /^gemini-(3\.7-flash|3\.8-flash|4-argon|4-carbon)$/,
    { signed: true, newest: true, levels: ['LOW', 'MEDIUM', 'HIGH'] },
  ],
  [/^gemini-4-(hydrogen|neon)$/, { signed: true, newest: true, levels: ['LOW', 'MEDIUM', 'HIGH', 'XHIGH'] }],
  [/^gemma-4-/, { levels: ['MINIMAL', 'HIGH'] }],
]

/** Null for a model that does not exist. */
export function traitsOf(model: string): Traits | null {
  const found = MODELS.find(([name]) => name.test(model))?.[1]
  const plain = {
    signed: false,
    signedTexts: false,
    newest: false,
    levels: [],
    budget: null,
    idle: false,
    cannotStop: false,
    output: 65_536,
  }
  return found ? { ...plain, ...found } : null
}
