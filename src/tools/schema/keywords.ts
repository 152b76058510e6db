/**
 * The language of a clean schema: which keywords there are, what each holds and what is kept of it, the types, where
 * subschemas stand, and the definitions that references lead to. A property may be named like a keyword, so every walk
 * goes by position, never by key name.
 */
import { canonicalJson, isRecord, isWithin } from '../../chat/json.ts'
import type { JsonSchema } from '../../provider.ts'
import { visibleText } from '../../text.ts'

/** Most bytes of one clean schema (mcp.md 7.5). */
export const MAX_SCHEMA_BYTES = 32_768
/** Values in one enum; a longer list is left out. */
const MAX_ENUM = 1_000
const MAX_DESCRIPTION = 4_096
const MAX_PATTERN = 1_000
const VALUE_LIMITS = { depth: 8, bytes: 4_096 }

/** A keyword that holds subschemas holds one, a list, or a map of them. */
type Place = 'schema' | 'list' | 'map'
type Check = (value: unknown) => boolean
type Keep = (value: unknown) => unknown

interface Keyword {
  fits: Check
  place?: Place
  /** The keyword says something about these types only; absent: about any type */
  types?: readonly string[]
  /** What is kept of its value; undefined: nothing. Absent if the value alone does not decide (normalise.ts) */
  keep?: Keep
  /** The keyword says nothing about validity, and may therefore stand beside a `$ref` in any draft */
  isAnnotation?: true
}

const isText: Check = (value) => typeof value === 'string'
const isFlag: Check = (value) => typeof value === 'boolean'
const isNumber: Check = (value) => typeof value === 'number' && Math.abs(value) <= Number.MAX_SAFE_INTEGER
const isCount: Check = (value) => Number.isSafeInteger(value) && Number(value) >= 0
export const isTexts: Check = (value) => Array.isArray(value) && value.every(isText)
export const isSchema: Check = (value) => isFlag(value) || isRecord(value)
const isList: Check = (value) => Array.isArray(value) && value.length > 0
const isAnything: Check = () => true

const same: Keep = (value) => value
const prose: Keep = (value) => visibleText(String(value), MAX_DESCRIPTION) || undefined
const bounded: Keep = (value) => (isWithin(value, VALUE_LIMITS) ? value : undefined)

/** An escape in an expression, and the name in it if it is a Unicode property. */
const ESCAPE = /\\(?:[pP]\{([^}]*)\}|.)/gs
/** The Unicode properties met so far that JavaScript knows, by name; there are some thousand. */
const properties = new Map<string, RegExp>()

/**
 * An expression that is short, and that JavaScript can read in its Unicode mode. Reading a Unicode property takes the
 * engine a tenth of a millisecond, and a list of tools has room for a hundred thousand: each is read once, and `\d`
 * takes its place elsewhere.
 */
export const isPattern = (pattern: string): boolean => {
  if (pattern.length > MAX_PATTERN) return false
  const digits = (escaped: string, property?: string): string => {
    if (property === undefined) return escaped
    if (!properties.has(property)) properties.set(property, new RegExp(`\\p{${property}}`, 'u'))
    return '\\d'
  }
  try {
    return new RegExp(pattern.replace(ESCAPE, digits), 'u') instanceof RegExp
  } catch {
    return false
  }
}

/** Escaped letters of other languages' expressions: `\A`, say. */
const FOREIGN = /^\\(?![bBcdDfknrsStuvwWx])[A-Za-z]$/

/**
 * The expression, if JavaScript can read it as it was meant; else null. Many expressions need the syntax from before
 * Unicode mode. That syntax reads an escape that JavaScript does not know as its letter, and a class name
 * (`[[:alpha:]]`) as plain characters: expressions with these are not tried in it.
 */
export function patternOf(pattern: string): RegExp | null {
  const escapes = pattern.match(/\\./gs) ?? []
  const isForeign = /\[:\w+:\]/.test(pattern) || escapes.some((escaped) => FOREIGN.test(escaped))
  for (const flags of isForeign ? ['u'] : ['u', '']) {
    try {
      return new RegExp(pattern, flags)
    } catch {
      // Tries the other mode, or gives up.
    }
  }
  return null
}

const OTHER_LETTERS = '|[^\\x00-\\x7f]'

/**
 * The expression, or one that takes any text with characters beyond ASCII, too, if languages differ in which of them
 * fit: `\w` is a letter of any script in Python, in .NET and in Rust, which reads pydantic's expressions.
 */
export const inAnyScript = (pattern: string): string =>
  /\\[wWdDbB]/.test(pattern) ? `(?:${pattern})${OTHER_LETTERS}` : pattern

/** What `inAnyScript` was given. */
export const asWritten = (pattern: string): string =>
  pattern.endsWith(`)${OTHER_LETTERS}`) ? pattern.slice('(?:'.length, -`)${OTHER_LETTERS}`.length) : pattern

function keptValues(value: unknown): unknown {
  const list = value as unknown[]
  if (list.length > MAX_ENUM || !isWithin(list, { depth: 4, bytes: MAX_SCHEMA_BYTES })) return undefined
  return distinct(list)
}

function keptNames(value: unknown): unknown {
  const lists = Object.entries(value as JsonSchema).filter(([, names]) => isList(names) && isTexts(names))
  return lists.length > 0 ? Object.fromEntries(lists) : undefined
}

const annotation = (fits: Check, keep: Keep): Keyword => ({ fits, keep, isAnnotation: true })
const of =
  (...types: string[]) =>
  (fits: Check, keep: Keep = same): Keyword => ({ fits, types, keep })
const ofText = of('string')
const ofNumber = of('number', 'integer')
const ofObject = of('object')
const ofArray = of('array')
const subschemas = (fits: Check, place: Place): Keyword => ({ fits, place })

/** Every keyword that is kept, in the order in which a clean schema has them. */
const KEYWORDS: ReadonlyMap<string, Keyword> = new Map<string, Keyword>([
  ['$ref', { fits: isText }],
  ['type', { fits: (value) => isText(value) || isTexts(value) }],
  ['title', annotation(isText, prose)],
  ['description', annotation(isText, prose)],
  ['enum', { fits: isList, keep: keptValues }],
  ['const', { fits: isAnything, keep: bounded }],
  ['default', annotation(isAnything, bounded)],
  ['examples', annotation(isList, bounded)],
  // OpenAPI gives numbers a format, too.
  ['format', of('string', 'number', 'integer')(isText)],
  ['pattern', ofText(isText, (value) => (isPattern(String(value)) ? value : undefined))],
  ['minLength', ofText(isCount)],
  ['maxLength', ofText(isCount)],
  ['contentEncoding', ofText(isText)],
  ['contentMediaType', ofText(isText)],
  ['minimum', ofNumber(isNumber)],
  ['maximum', ofNumber(isNumber)],
  ['exclusiveMinimum', ofNumber(isNumber)],
  ['exclusiveMaximum', ofNumber(isNumber)],
  ['multipleOf', ofNumber((value) => isNumber(value) && Number(value) > 0)],
  ['properties', subschemas(isRecord, 'map')],
  ['required', { fits: isTexts }],
  ['minProperties', ofObject(isCount)],
  ['maxProperties', ofObject(isCount)],
  ['additionalProperties', subschemas(isSchema, 'schema')],
  ['patternProperties', subschemas(isRecord, 'map')],
  ['propertyNames', subschemas(isSchema, 'schema')],
  ['dependentRequired', ofObject(isRecord, keptNames)],
  ['dependentSchemas', subschemas(isRecord, 'map')],
  ['prefixItems', subschemas(isList, 'list')],
  ['items', subschemas(isSchema, 'schema')],
  ['minItems', ofArray(isCount)],
  ['maxItems', ofArray(isCount)],
  ['uniqueItems', ofArray(isFlag)],
  ['contains', subschemas(isSchema, 'schema')],
  ['allOf', subschemas(isList, 'list')],
  ['anyOf', subschemas(isList, 'list')],
  ['oneOf', subschemas(isList, 'list')],
  ['not', subschemas(isSchema, 'schema')],
  ['if', subschemas(isSchema, 'schema')],
  ['then', subschemas(isSchema, 'schema')],
  ['else', subschemas(isSchema, 'schema')],
  ['$defs', subschemas(isRecord, 'map')],
])
/** All keywords of a clean schema, in the order in which it has them. */
export const KEYWORD_ORDER: readonly string[] = [...KEYWORDS.keys()]
export const isAnnotation = (keyword: string): boolean => KEYWORDS.get(keyword)?.isAnnotation === true
const ANNOTATIONS = KEYWORD_ORDER.filter(isAnnotation)

/** Whether this is a keyword that may have this value. */
export const isFit = (keyword: string, value: unknown): boolean => KEYWORDS.get(keyword)?.fits(value) ?? false

/** What is kept of a value that fits, in a node of these types (null: any); undefined: nothing. */
export function keptOf(keyword: string, value: unknown, types: readonly string[] | null): unknown {
  const { types: own, keep } = KEYWORDS.get(keyword) ?? {}
  if (types && own && !own.some((type) => types.includes(type))) return undefined
  return keep?.(value)
}

/** A node's keywords that say nothing about validity. */
export function annotationsOf(node: ReadonlyMap<string, unknown>): JsonSchema {
  const there = ANNOTATIONS.filter((keyword) => node.has(keyword))
  const kept = there.map((keyword) => [keyword, keptOf(keyword, node.get(keyword), null)])
  return Object.fromEntries(kept.filter(([, value]) => value !== undefined))
}

/** The schema with its keywords, or only the kept ones, in the order of KEYWORDS. */
export function ordered(schema: JsonSchema, isKept: (keyword: string) => boolean = () => true): JsonSchema {
  const kept = KEYWORD_ORDER.filter((keyword) => Object.hasOwn(schema, keyword) && isKept(keyword))
  return Object.fromEntries(kept.map((keyword) => [keyword, schema[keyword]]))
}

/** Each value once; equal ones may be written differently. */
export const distinct = <T>(values: readonly T[]): T[] => [
  ...new Map(values.map((value) => [canonicalJson(value), value])).values(),
]

// ---------------------------------------------------------------- types

export const TYPES: ReadonlySet<string> = new Set([
  'string',
  'number',
  'integer',
  'boolean',
  'object',
  'array',
  'null',
])

/** A schema's types as a list; null: any. */
export const typesOf = (schema: JsonSchema): string[] | null =>
  schema.type === undefined ? null : ([schema.type].flat() as string[])

/** A list of types as `type` has it: a single one stands without the list. */
export const asType = (types: readonly string[]): unknown => (types.length === 1 ? types[0] : types)

/** A node reduced to the kind of value that it describes. */
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

// ---------------------------------------------------------------- positions

/** How a keyword holds subschemas; undefined: it holds none. */
export const placeOf = (keyword: string): Place | undefined => KEYWORDS.get(keyword)?.place

/** A copy of a 2020-12 node whose direct subschemas went through `fn`. */
export function mapSubschemas(node: JsonSchema, fn: (sub: unknown) => unknown): JsonSchema {
  const copy = { ...node }
  for (const keyword of Object.keys(node)) {
    const place = placeOf(keyword)
    if (place !== undefined) copy[keyword] = mapped(place, node[keyword], fn)
  }
  return copy
}

function mapped(place: Place, value: unknown, fn: (sub: unknown) => unknown): unknown {
  switch (place) {
    case 'list':
      return (value as unknown[]).map((sub) => fn(sub))
    case 'map':
      return Object.fromEntries(Object.entries(value as JsonSchema).map(([key, sub]) => [key, fn(sub)]))
    case 'schema':
      return fn(value)
    default:
      return place satisfies never
  }
}

/** A node's direct subschemas, without mere booleans. */
export const subschemasOf = (node: JsonSchema): JsonSchema[] =>
  Object.keys(node).flatMap((keyword) => {
    const place = placeOf(keyword)
    if (place === undefined) return []
    const value = node[keyword]
    return (place === 'schema' ? [value] : Object.values(value as object)).filter(isRecord)
  })

/** The members of a keyword that holds a list of subschemas, without mere booleans. */
export const listOf = (value: unknown): JsonSchema[] => (Array.isArray(value) ? value.filter(isRecord) : [])

/** A 2020-12 schema and all subschemas in it, without mere booleans. */
export function nodesOf(schema: JsonSchema): JsonSchema[] {
  const nodes = [schema]
  // The list grows while it is read.
  for (const node of nodes) for (const sub of subschemasOf(node)) nodes.push(sub)
  return nodes
}

// ---------------------------------------------------------------- definitions

/** What every reference of a clean schema begins with. */
export const DEFINITION = '#/$defs/'

/** The name of the definition that a clean schema's reference leads to. */
export const definitionIn = ($ref: unknown): string => String($ref).slice(DEFINITION.length)

/** A clean schema's definitions by name. */
export const definitionsOf = (schema: JsonSchema): Map<string, JsonSchema> =>
  new Map(Object.entries((schema.$defs ?? {}) as Record<string, JsonSchema>))

/** The schema with the definitions that it still refers to, sorted by name. */
export function withDefinitions(
  schema: JsonSchema,
  definitions: ReadonlyMap<string, JsonSchema>,
): JsonSchema {
  const { $defs: _, ...own } = schema
  const reached = new Map<string, JsonSchema>()
  const open = refsIn(own)
  for (let name = open.pop(); name !== undefined; name = open.pop()) {
    const definition = definitions.get(name)
    if (!definition || reached.has(name)) continue
    reached.set(name, definition)
    open.push(...refsIn(definition))
  }
  if (reached.size === 0) return own
  return { ...own, $defs: Object.fromEntries([...reached].sort(([a], [b]) => (a < b ? -1 : 1))) }
}

/** Names of the definitions that a clean schema refers to. */
const refsIn = (schema: JsonSchema): string[] =>
  nodesOf(schema).flatMap(({ $ref }) => ($ref === undefined ? [] : [definitionIn($ref)]))
