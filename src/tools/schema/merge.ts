/** Merges clean schemas: into one that allows what both allow (`intersect`), or what any of several allows (`unite`). */
import { canonicalJson, isRecord } from '../../chat/json.ts'
import type { JsonSchema } from '../../provider.ts'
import { tidyValues } from './dialect.ts'
import { asType, distinct, KEYWORD_ORDER, typesOf } from './keywords.ts'

type Merge = (a: unknown, b: unknown, spend: Spend) => unknown
/** Told how many members a merge is about to read; throws where they are too many. */
type Spend = (members: number) => void

/** For annotations, and every keyword without a rule: the second schema's value. */
const second: Merge = (_, b) => b
const first: Merge = (a) => a
const larger: Merge = (a, b) => Math.max(Number(a), Number(b))
const smaller: Merge = (a, b) => Math.min(Number(a), Number(b))

const RULES: Readonly<Record<string, Merge>> = {
  type: sharedTypes,
  // If no value is shared, the schemas contradict each other: the first list is kept, and a call will show the problem.
  enum: (a, b, spend) => {
    spend((a as unknown[]).length + (b as unknown[]).length)
    const allowed = new Set((b as unknown[]).map(canonicalJson))
    const shared = (a as unknown[]).filter((value) => allowed.has(canonicalJson(value)))
    return shared.length > 0 ? shared : a
  },
  const: first,
  properties: mergeMaps,
  patternProperties: mergeMaps,
  required: (a, b, spend) => {
    spend((a as string[]).length + (b as string[]).length)
    return [...new Set([...(a as string[]), ...(b as string[])])]
  },
  additionalProperties: (a, b, spend) => {
    if (a === false || b === false) return false
    return isRecord(a) && isRecord(b) ? intersect(a, b, spend) : isRecord(a) ? a : b
  },
  items: (a, b, spend) => intersect(a as JsonSchema, b as JsonSchema, spend),
  minLength: larger,
  minimum: larger,
  exclusiveMinimum: larger,
  minItems: larger,
  minProperties: larger,
  maxLength: smaller,
  maximum: smaller,
  exclusiveMaximum: smaller,
  maxItems: smaller,
  maxProperties: smaller,
  // Two unions at once have no simple form: the first one stays.
  anyOf: first,
  oneOf: first,
  // The merged `items` are for the members after the longer list.
  prefixItems: (a, b) => ((b as unknown[]).length > (a as unknown[]).length ? b : a),
}

const CONDITION = ['if', 'then', 'else']

/** What both schemas allow, as far as one flat schema can say it; annotations are the second's. */
export function intersect(a: JsonSchema, b: JsonSchema, spend: Spend = () => {}): JsonSchema {
  const merged: JsonSchema = {}
  const isTwice = [a, b].every((schema) => CONDITION.some((keyword) => keyword in schema))
  for (const keyword of KEYWORD_ORDER) {
    // The `if` of one with the `then` of another would say what neither does.
    if (isTwice && CONDITION.includes(keyword)) continue
    const [inA, inB] = [keyword in a, keyword in b]
    if (inA && inB) merged[keyword] = (RULES[keyword] ?? second)(a[keyword], b[keyword], spend)
    else if (inA || inB) merged[keyword] = inA ? a[keyword] : b[keyword]
  }
  // Values of one may be of types that the other forbids, and vendors refuse such lists (can1357/oh-my-pi#1835).
  if (![a, b].some(({ type }) => type !== undefined && String(type) !== String(merged.type))) return merged
  if (Array.isArray(merged.enum)) spend(merged.enum.length)
  tidyValues(merged)
  return merged
}

function mergeMaps(a: unknown, b: unknown, spend: Spend): JsonSchema {
  const merged = new Map(Object.entries(a as JsonSchema))
  const added = Object.entries(b as JsonSchema)
  spend(merged.size + added.length)
  for (const [key, sub] of added) {
    const known = merged.get(key)
    merged.set(key, isRecord(known) && isRecord(sub) ? intersect(known, sub, spend) : sub)
  }
  return Object.fromEntries(merged)
}

function sharedTypes(a: unknown, b: unknown): unknown {
  const [left, right] = [[a].flat() as string[], [b].flat()]
  const shared = left.flatMap((type) => {
    if (right.includes(type)) return [type]
    if (type === 'number' && right.includes('integer')) return ['integer']
    return type === 'integer' && right.includes('number') ? ['integer'] : []
  })
  return shared.length === 0 ? a : asType(shared)
}

/**
 * One object that takes the arguments of every branch: the union of their properties, with only those required that all
 * branches require (wire/anthropic.md 5, wire/openai.md 5). A branch that is not an object is left out.
 */
export function unite(branches: readonly JsonSchema[]): JsonSchema {
  // Hundreds of branches may be one definition, or hold the properties of one.
  const objects = [...new Set(branches)].filter((branch) => {
    const types = typesOf(branch)
    return types === null || types.includes('object')
  })
  const variants = new Map<string, Set<JsonSchema>>()
  for (const { properties } of objects) {
    if (!isRecord(properties)) continue
    for (const [key, sub] of Object.entries(properties)) {
      if (isRecord(sub)) variants.set(key, (variants.get(key) ?? new Set()).add(sub))
    }
  }
  const lists = objects.map(({ required }) => new Set(Array.isArray(required) ? required : []))
  const required = [...(lists[0] ?? [])].filter((key) => lists.every((list) => list.has(key)))
  const isClosed =
    objects.length > 0 &&
    objects.every((branch) => branch.additionalProperties === false && !branch.patternProperties)
  return {
    type: 'object',
    properties: Object.fromEntries([...variants].map(([key, subs]) => [key, either([...subs])])),
    ...(required.length > 0 ? { required } : {}),
    ...(isClosed ? { additionalProperties: false } : {}),
  }
}

/** A schema for a value of any of these; if all are lists of values, one list. */
function either(subs: readonly JsonSchema[]): JsonSchema {
  const kinds = distinct(subs)
  const [only] = kinds
  if (only && kinds.length === 1) return only
  const values = kinds.map(({ enum: list, const: value }) => (value !== undefined ? [value] : list))
  if (!values.every(Array.isArray)) return { anyOf: kinds }
  const types = [...new Set(kinds.flatMap((sub) => typesOf(sub) ?? []))]
  const description = kinds.find((sub) => sub.description !== undefined)?.description
  return {
    ...(types.length > 0 ? { type: asType(types) } : {}),
    ...(description === undefined ? {} : { description }),
    enum: distinct(values.flat()),
  }
}
