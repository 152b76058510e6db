/** Which types a schema node has: as written, misspelt, left out, or known only from its values. */
import type { JsonSchema } from '../provider.ts'
import { TYPES } from './schema-keywords.ts'

/** Its types as a list; null: any. */
export const typesOf = (schema: JsonSchema): string[] | null =>
  schema.type === undefined ? null : ([schema.type].flat() as string[])

/** What `type` says of a list of types: one is written without the list. */
export const asType = (types: readonly string[]): unknown => (types.length === 1 ? types[0] : types)

/** Every integer is a number. */
const withoutOverlap = (types: string[]): string[] =>
  types.includes('number') ? types.filter((type) => type !== 'integer') : types

/** Only what kind of value a node describes. */
export function kindOf(node: JsonSchema): JsonSchema {
  const types = typesOf(node)
  if (!types) return {}
  return {
    type: node.type,
    ...(node.description === undefined ? {} : { description: node.description }),
    ...(types.includes('object') ? { properties: {} } : {}),
    ...(types.includes('array') ? { items: {} } : {}),
  }
}

/** Names that people write for them. `any` says that every type will do. */
const ALIASES: Readonly<Record<string, string>> = {
  str: 'string',
  text: 'string',
  date: 'string',
  datetime: 'string',
  int: 'integer',
  long: 'integer',
  float: 'number',
  double: 'number',
  decimal: 'number',
  bool: 'boolean',
  dict: 'object',
  map: 'object',
  list: 'array',
  tuple: 'array',
  none: 'null',
}

/** A node's types; null: any. An unknown one becomes string, and is reported. */
export function knownTypes(node: Map<string, unknown>): { types: string[] | null; isUnknown: boolean } {
  const given = [node.get('type') ?? []].flat().map((type) => String(type).toLowerCase())
  if (given.includes('any')) return { types: null, isUnknown: false }
  const types = [...new Set(given.map((type) => ALIASES[type] ?? type))].filter((type) => TYPES.has(type))
  if (types.length > 0) return { types: withoutOverlap(types), isUnknown: false }
  if (given.length > 0) return { types: ['string'], isUnknown: true }
  const inferred = inferredType(node)
  return { types: inferred ? [inferred] : null, isUnknown: false }
}

/** A missing type, from the keywords that only one type has. */
function inferredType(node: Map<string, unknown>): string | null {
  if (['properties', 'additionalProperties', 'patternProperties'].some((key) => node.has(key))) {
    return 'object'
  }
  if (['items', 'prefixItems', 'minItems', 'maxItems'].some((key) => node.has(key))) return 'array'
  for (const [type, keywords] of [
    ['string', ['pattern', 'minLength', 'maxLength']],
    ['number', ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum']],
  ] as const) {
    if (keywords.some((key) => node.has(key))) return type
  }
  return null
}

const typeOfValue = (value: unknown): string => {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'array'
  return typeof value === 'number' && Number.isInteger(value) ? 'integer' : typeof value
}
const fits = (value: unknown, types: readonly string[]): boolean => {
  const type = typeOfValue(value)
  return types.includes(type) || (type === 'integer' && types.includes('number'))
}

/** Values that agree with the types; where none does, the values are believed. */
export function tidyValues(schema: JsonSchema): void {
  const list = schema.enum ?? (schema.const === undefined ? undefined : [schema.const])
  if (Array.isArray(list)) {
    const types = typesOf(schema)
    const fitting = types ? list.filter((value) => fits(value, types)) : []
    const values = fitting.length > 0 ? fitting : list
    if (schema.enum !== undefined) schema.enum = values
    if (fitting.length === 0) schema.type = asType(withoutOverlap([...new Set(values.map(typeOfValue))]))
  }
  const types = typesOf(schema)
  // A default of null on what cannot be null says "absent" (copilot-cli#1876).
  if (types && schema.default !== undefined && !fits(schema.default, types)) delete schema.default
}
