/**
 * JSON Schema of any draft, one node at a time: which keywords there are, where subschemas stand, what an
 * older draft's form means in 2020-12, and where a local reference leads. A property may be named like a
 * keyword, so every walk goes by position, never by key name.
 */
import { isRecord, stepOf, stepsOf } from '../chat/json.ts'
import type { JsonSchema } from '../provider.ts'

/** A keyword that holds subschemas holds one, a list, or a map of them. */
type Place = 'schema' | 'list' | 'map'
type Check = (value: unknown) => boolean

const isText: Check = (value) => typeof value === 'string'
const isFlag: Check = (value) => typeof value === 'boolean'
const isNumber: Check = (value) => typeof value === 'number' && Math.abs(value) <= Number.MAX_SAFE_INTEGER
const isCount: Check = (value) => Number.isSafeInteger(value) && Number(value) >= 0
const isTexts: Check = (value) => Array.isArray(value) && value.every(isText)
const isSchema: Check = (value) => isFlag(value) || isRecord(value)
const isList: Check = (value) => Array.isArray(value) && value.length > 0
const isAnything: Check = () => true

/** Every keyword that is kept, in the order in which a clean schema has them. */
const KEYWORDS: readonly (readonly [string, Check, Place?])[] = [
  ['$ref', isText],
  ['type', (value) => isText(value) || isTexts(value)],
  ['title', isText],
  ['description', isText],
  ['enum', isList],
  ['const', isAnything],
  ['default', isAnything],
  ['examples', isList],
  ['format', isText],
  ['pattern', isText],
  ['minLength', isCount],
  ['maxLength', isCount],
  ['contentEncoding', isText],
  ['contentMediaType', isText],
  ['minimum', isNumber],
  ['maximum', isNumber],
  ['exclusiveMinimum', isNumber],
  ['exclusiveMaximum', isNumber],
  ['multipleOf', (value) => isNumber(value) && Number(value) > 0],
  ['properties', isRecord, 'map'],
  ['required', isTexts],
  ['minProperties', isCount],
  ['maxProperties', isCount],
  ['additionalProperties', isSchema, 'schema'],
  ['patternProperties', isRecord, 'map'],
  ['propertyNames', isSchema, 'schema'],
  ['dependentRequired', isRecord],
  ['dependentSchemas', isRecord, 'map'],
  ['prefixItems', isList, 'list'],
  ['items', isSchema, 'schema'],
  ['minItems', isCount],
  ['maxItems', isCount],
  ['uniqueItems', isFlag],
  ['contains', isSchema, 'schema'],
  ['allOf', isList, 'list'],
  ['anyOf', isList, 'list'],
  ['oneOf', isList, 'list'],
  ['not', isSchema, 'schema'],
  ['if', isSchema, 'schema'],
  ['then', isSchema, 'schema'],
  ['else', isSchema, 'schema'],
  ['$defs', isRecord, 'map'],
]
/** All keywords of a clean schema, in the order in which it has them. */
export const KEYWORD_ORDER: readonly string[] = KEYWORDS.map(([keyword]) => keyword)
const CHECKS: ReadonlyMap<string, Check> = new Map(KEYWORDS.map(([keyword, check]) => [keyword, check]))
const PLACES: ReadonlyMap<string, Place> = new Map(
  KEYWORDS.flatMap(([keyword, , place]) => (place ? [[keyword, place]] : [])),
)

/** What says nothing about validity, and may therefore stand beside a `$ref` in any draft. */
export const ANNOTATIONS: ReadonlySet<string> = new Set(['title', 'description', 'default', 'examples'])

// ---------------------------------------------------------------- older drafts

export const TYPES: ReadonlySet<string> = new Set([
  'string',
  'number',
  'integer',
  'boolean',
  'object',
  'array',
  'null',
])

type Entries = [string, unknown][]
type Rewrite = (value: unknown, node: JsonSchema) => Entries

/** A boolean bound of draft-04 takes its number from its neighbour; with others it is a number itself. */
const exclusive =
  (keyword: string, neighbour: string): Rewrite =>
  (value, node) => {
    if (typeof value !== 'boolean') return [[keyword, value]]
    return value ? [[keyword, node[neighbour]]] : []
  }
const inclusive =
  (keyword: string, neighbour: string): Rewrite =>
  (value, node) =>
    node[neighbour] === true ? [] : [[keyword, value]]

const REWRITES: ReadonlyMap<string, Rewrite> = new Map<string, Rewrite>([
  ['exclusiveMinimum', exclusive('exclusiveMinimum', 'minimum')],
  ['exclusiveMaximum', exclusive('exclusiveMaximum', 'maximum')],
  ['minimum', inclusive('minimum', 'exclusiveMinimum')],
  ['maximum', inclusive('maximum', 'exclusiveMaximum')],
  ['definitions', (value) => [['$defs', value]]],
  ['$recursiveRef', () => [['$ref', '#']]],
  ['$dynamicRef', (value) => [['$ref', value]]],
  // Tuples before 2020-12: a list of `items`, the rest in `additionalItems`.
  [
    'items',
    (value, { additionalItems }) => {
      if (!Array.isArray(value)) return [['items', value]]
      return [
        ...tuple(value),
        ...(additionalItems === undefined ? [] : [['items', additionalItems] as [string, unknown]]),
      ]
    },
  ],
  // OpenAPI 3.0
  ['type', (value, { nullable }) => [['type', nullable === true ? [value, 'null'].flat() : value]]],
  [
    'enum',
    (value, { nullable }) => [['enum', nullable === true && Array.isArray(value) ? [...value, null] : value]],
  ],
  // PHP writes an empty map as an empty list (mcp.md 4).
  ['properties', (value) => [['properties', Array.isArray(value) && value.length === 0 ? {} : value]]],
  ['required', (value) => [['required', Array.isArray(value) ? value.filter(isText) : value]]],
  // Asked for not even once, `contains` says nothing.
  ['contains', (value, { minContains }) => (minContains === 0 ? [] : [['contains', value]])],
  ['dependencies', (value) => (isRecord(value) ? splitDependencies(value) : [])],
])

const tuple = (items: unknown[]): Entries => (items.length === 0 ? [] : [['prefixItems', items]])

function splitDependencies(value: JsonSchema): Entries {
  const entries = Object.entries(value)
  const lists = entries.filter(([, needs]) => isTexts(needs))
  const schemas = entries.filter(([, needs]) => isSchema(needs))
  return [
    ['dependentRequired', Object.fromEntries(lists)],
    ['dependentSchemas', Object.fromEntries(schemas)],
  ]
}

/** One node's known keywords in their 2020-12 form; what is malformed or unknown is left out. Children are untouched. */
export function modernNode(raw: JsonSchema): Map<string, unknown> {
  const node = new Map<string, unknown>()
  for (const [key, value] of Object.entries(raw)) {
    const rewritten = REWRITES.get(key)?.(value, raw) ?? [[key, value]]
    for (const [keyword, modern] of rewritten) {
      if (!CHECKS.get(keyword)?.(modern)) continue
      const known = node.get(keyword)
      // `definitions` beside `$defs`: both are places to refer to.
      node.set(keyword, isRecord(known) && isRecord(modern) ? { ...known, ...modern } : modern)
    }
  }
  return node
}

// ---------------------------------------------------------------- positions

/**
 * A whole schema of any draft as 2020-12, with its meaning kept: for a validator, not for a provider. A
 * reference that leads nowhere in the schema is dropped. Throws a RangeError beyond `maxNodes` subschemas.
 */
export function modernised(raw: unknown, maxNodes: number): JsonSchema | boolean {
  const resolve = createResolver(raw, maxNodes)
  let count = 0
  const visit = (sub: unknown): JsonSchema | boolean => {
    if (!isRecord(sub)) return sub !== false
    if (++count > maxNodes) throw new RangeError(`more than ${maxNodes} subschemas`)
    const node = modernNode(sub)
    const types = [node.get('type') ?? []].flat() as string[]
    // A type that JSON Schema does not know refuses nothing.
    if (!types.every((type) => TYPES.has(type))) node.delete('type')
    const ref = node.get('$ref')
    const found = typeof ref === 'string' ? resolve(ref) : null
    if (found) node.set('$ref', `#${encodeURI(found.pointer)}`)
    else node.delete('$ref')
    return mapSubschemas(Object.fromEntries(node), visit)
  }
  return visit(raw)
}

/** A copy of a 2020-12 node whose direct subschemas went through `fn`. */
export function mapSubschemas(node: JsonSchema, fn: (sub: unknown) => unknown): JsonSchema {
  const mapped = (keyword: string, value: unknown): unknown => {
    switch (PLACES.get(keyword)) {
      case undefined:
        return value
      case 'list':
        return (value as unknown[]).map((sub) => fn(sub))
      case 'map':
        return Object.fromEntries(Object.entries(value as JsonSchema).map(([key, sub]) => [key, fn(sub)]))
      default:
        return fn(value)
    }
  }
  return Object.fromEntries(Object.entries(node).map(([keyword, value]) => [keyword, mapped(keyword, value)]))
}

/** Names of the definitions that a clean schema refers to. */
function refsIn(schema: JsonSchema): Set<string> {
  const names = new Set<string>()
  const visit = (sub: unknown): unknown => {
    if (!isRecord(sub)) return sub
    if (sub.$ref !== undefined) names.add(definitionIn(sub.$ref))
    return mapSubschemas(sub, visit)
  }
  visit(schema)
  return names
}

/** What every reference of a clean schema begins with. */
export const DEFINITION = '#/$defs/'

/** The name of the definition that a clean schema's reference leads to. */
export const definitionIn = ($ref: unknown): string => String($ref).slice(DEFINITION.length)

/** The schema with those of the definitions, sorted by name, that something in it still refers to. */
export function withDefinitions(
  schema: JsonSchema,
  definitions: ReadonlyMap<string, JsonSchema>,
): JsonSchema {
  const { $defs: _, ...own } = schema
  const reached = new Map<string, JsonSchema>()
  const open = [...refsIn(own)]
  for (let name = open.pop(); name !== undefined; name = open.pop()) {
    const definition = definitions.get(name)
    if (!definition || reached.has(name)) continue
    reached.set(name, definition)
    open.push(...refsIn(definition))
  }
  if (reached.size === 0) return own
  return { ...own, $defs: Object.fromEntries([...reached].sort(([a], [b]) => (a < b ? -1 : 1))) }
}

/** A clean schema's definitions by name. */
export const definitionsOf = (schema: JsonSchema): Map<string, JsonSchema> =>
  new Map(Object.entries((schema.$defs ?? {}) as Record<string, JsonSchema>))

// ---------------------------------------------------------------- references

export interface Resolved {
  node: unknown
  /** Where it stands once every node on the way has its 2020-12 form */
  pointer: string
}

/** Resolves references within one schema; a remote one is never fetched: it leads nowhere. */
export function createResolver(root: unknown, maxNodes: number): (ref: string) => Resolved | null {
  let named: Map<string, Resolved> | null = null
  return (ref) => {
    const hash = ref.indexOf('#')
    const base = hash < 0 ? ref : ref.slice(0, hash)
    const fragment = hash < 0 ? '' : decode(ref.slice(hash + 1))
    if (base === '' && (fragment === '' || fragment.startsWith('/'))) return follow(root, '', fragment)
    named ??= findNamed(root, maxNodes)
    const start = base === '' ? named.get(`#${fragment}`) : named.get(base)
    if (!start || base === '' || fragment === '') return start ?? null
    return fragment.startsWith('/') ? follow(start.node, start.pointer, fragment) : null
  }
}

function decode(fragment: string): string {
  try {
    return decodeURIComponent(fragment)
  } catch {
    return fragment
  }
}

/** What the node at hand is: a schema, a keyword's list or map of schemas, or mere data. */
type Standing = 'schema' | 'container' | 'data'

function follow(from: unknown, base: string, path: string): Resolved | null {
  let node = from
  let standing: Standing = 'schema'
  let pointer = base
  for (const key of stepsOf(path)) {
    if (typeof node !== 'object' || node === null || !Object.hasOwn(node, key)) return null
    const child: unknown = (node as JsonSchema)[key]
    const keyword: string | null = standing === 'schema' ? modernKeyword(key, child) : null
    pointer += `/${keyword ?? stepOf(key)}`
    standing = keyword === null ? (standing === 'container' ? 'schema' : 'data') : standingOf(keyword)
    node = child
  }
  return { node, pointer }
}

function modernKeyword(key: string, value: unknown): string {
  if (key === 'items' && Array.isArray(value)) return 'prefixItems'
  if (key === 'definitions') return '$defs'
  return key === 'additionalItems' ? 'items' : key
}

function standingOf(keyword: string): Standing {
  const place = PLACES.get(keyword)
  if (place === undefined) return 'data'
  return place === 'schema' ? 'schema' : 'container'
}

/** Subschemas that can be referred to by a name: `$anchor`, `$id`, and draft-04's `id`. */
function findNamed(root: unknown, maxNodes: number): Map<string, Resolved> {
  const named = new Map<string, Resolved>()
  const open: Resolved[] = [{ node: root, pointer: '' }]
  for (let seen = 0; seen < maxNodes; seen++) {
    const next = open.pop()
    if (!next) break
    const { node, pointer } = next
    if (!isRecord(node)) continue
    for (const key of ['$anchor', '$dynamicAnchor']) {
      if (typeof node[key] === 'string') named.set(`#${node[key]}`, next)
    }
    for (const key of ['$id', 'id']) {
      const id = node[key]
      if (typeof id === 'string') named.set(id.startsWith('#') ? id : id.replace(/#$/, ''), next)
    }
    for (const [keyword, value] of modernNode(node)) {
      for (const [path, sub] of children(keyword, value)) open.push({ node: sub, pointer: pointer + path })
    }
  }
  return named
}

function children(keyword: string, value: unknown): [string, unknown][] {
  const place = PLACES.get(keyword)
  if (place === 'schema') return [[`/${keyword}`, value]]
  if (place === 'list') return (value as unknown[]).map((sub, i) => [`/${keyword}/${i}`, sub])
  if (place !== 'map') return []
  return Object.entries(value as JsonSchema).map(([key, sub]) => [`/${keyword}/${stepOf(key)}`, sub])
}
