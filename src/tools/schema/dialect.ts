/**
 * JSON Schema of any draft, one node at a time: what an older draft's form means in 2020-12, which types a node has if
 * they are misspelt, left out or known only from its values, and where a local reference leads.
 */
import { isRecord, isWithin, valueAt } from '../../chat/json.ts'
import type { JsonSchema } from '../../provider.ts'
import {
  asType,
  DEFINITION,
  inAnyScript,
  isAnnotation,
  isFit,
  isSchema,
  isTexts,
  mapSubschemas,
  patternOf,
  subschemasOf,
  TYPES,
  typesOf,
} from './keywords.ts'
import { isWhole, withWholeTests } from './whole.ts'

type Entries = [string, unknown][]
/** A value that does not fit its keyword is dropped (modernNode). */
type Rewrite = (value: unknown, node: JsonSchema) => Entries

/** In draft-04 an exclusive bound is a boolean, and its neighbour has the number; in later drafts it is a number itself. */
const exclusive =
  (keyword: string, neighbour: string): Rewrite =>
  (value, node) => [[keyword, value === true ? node[neighbour] : value]]
const inclusive =
  (keyword: string, neighbour: string): Rewrite =>
  (value, node) =>
    node[neighbour] === true ? [] : [[keyword, value]]

/** The schema of a map's values, if the node gives it under an expression that every name matches, as TypeBox does. */
function ofAnyName({ properties, patternProperties }: JsonSchema): unknown {
  const [[name, sub] = [], ...more] = isRecord(patternProperties) ? Object.entries(patternProperties) : []
  const isAlone = more.length === 0 && Object.keys(properties ?? {}).length === 0
  return isAlone && (name === '^(.*)$' || name === '^.*$') ? sub : undefined
}

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
    (value, { additionalItems: rest }) =>
      Object.entries(Array.isArray(value) ? { prefixItems: value, items: rest } : { items: value }),
  ],
  // OpenAPI 3.0
  ['type', (value, { nullable }) => [['type', nullable === true ? [value, 'null'].flat() : value]]],
  [
    'enum',
    (value, { nullable }) => [['enum', nullable === true && Array.isArray(value) ? [...value, null] : value]],
  ],
  // Anthropic refused such an expression (openclaw/openclaw#29416), and others know no keyword for it.
  [
    'patternProperties',
    (value, node) => {
      const sub = ofAnyName(node)
      return [sub === undefined ? ['patternProperties', value] : ['additionalProperties', sub]]
    },
  ],
  [
    'additionalProperties',
    (value, node) => (ofAnyName(node) === undefined ? [['additionalProperties', value]] : []),
  ],
  // PHP writes an empty map as an empty list (mcp.md 4).
  ['properties', (value) => [['properties', Array.isArray(value) && value.length === 0 ? {} : value]]],
  [
    'required',
    (value) => [
      ['required', Array.isArray(value) ? value.filter((name) => typeof name === 'string') : value],
    ],
  ],
  // With `minContains: 0`, `contains` says nothing.
  ['contains', (value, { minContains }) => (minContains === 0 ? [] : [['contains', value]])],
  ['dependencies', (value) => (isRecord(value) ? splitDependencies(value) : [])],
])

function splitDependencies(value: JsonSchema): Entries {
  const entries = Object.entries(value)
  const lists = entries.filter(([, needs]) => isTexts(needs))
  const schemas = entries.filter(([, needs]) => isSchema(needs))
  return [
    ['dependentRequired', Object.fromEntries(lists)],
    ['dependentSchemas', Object.fromEntries(schemas)],
  ]
}

/** Keywords that refuse null whatever `type` allows. Many write OpenAPI's `nullable` beside them, and mean it. */
const REFUSING = ['$ref', 'allOf', 'anyOf', 'oneOf', 'const']
const isOrNull = (raw: JsonSchema): boolean =>
  raw.nullable === true && REFUSING.some((keyword) => Object.hasOwn(raw, keyword) && !hasNull(raw[keyword]))
/** Others name null among the choices as well. */
const hasNull = (choices: unknown): boolean =>
  Array.isArray(choices) && choices.some((sub) => isRecord(sub) && sub.type === 'null')
/** Keywords that name the node, or places in it */
const NAMING = ['$defs', 'definitions', '$anchor', '$dynamicAnchor', '$id', 'id']
/** Whether a keyword stays outside the choice between null and all the others. */
const isOutside = (keyword: string): boolean =>
  isAnnotation(keyword) || NAMING.includes(keyword) || keyword === 'nullable'

function withChoiceOfNull(raw: JsonSchema): JsonSchema {
  const entries = Object.entries(raw)
  const outside = entries.filter(([keyword]) => isOutside(keyword))
  const own = entries.filter(([keyword]) => !isOutside(keyword))
  return { ...Object.fromEntries(outside), anyOf: [Object.fromEntries(own), { type: 'null' }] }
}

/** One node's known keywords in their 2020-12 form, without malformed and unknown ones. Children are untouched. */
export function modernNode(raw: JsonSchema): Map<string, unknown> {
  const node = new Map<string, unknown>()
  const given = isOrNull(raw) ? withChoiceOfNull(raw) : raw
  for (const [key, value] of Object.entries(given)) {
    const rewritten = REWRITES.get(key)?.(value, given) ?? [[key, value]]
    for (const [keyword, modern] of rewritten) {
      if (!isFit(keyword, modern)) continue
      const known = node.get(keyword)
      // `definitions` beside `$defs`: both are places to refer to.
      node.set(keyword, isRecord(known) && isRecord(modern) ? { ...known, ...modern } : modern)
    }
  }
  return node
}

/**
 * The largest schema that is copied, and most bytes of all its copies: larger ones would push the words and details of
 * other parts out of the tool's schema, or the tool out of the list.
 */
const MOST_COPIED = { depth: 4, bytes: 4_096 }

/**
 * What a node says of each of so many names that no property lists; false: nobody knows, or it is too long to be said
 * of each. A reference may lead to something of any size.
 */
export function ofUnlisted(node: ReadonlyMap<string, unknown>, count: number): unknown {
  const others = node.get('additionalProperties') ?? true
  if (!isRecord(others) || count === 0) return others
  const isShort = isWithin(others, { ...MOST_COPIED, bytes: MOST_COPIED.bytes / count })
  return isShort && others.$ref === undefined && !node.has('patternProperties') && others
}

/** Keywords that the validator reads but does not check. */
const UNCHECKED = ['format', 'contentEncoding', 'contentMediaType']

/** Drafts in which what stands beside a reference says nothing */
const OLDER = /json-schema\.org\/draft-0[3-7]\//

/** Most subschemas that a validator is given */
const MOST_NODES = 20_000

/**
 * A whole schema of any draft as 2020-12, with its meaning kept: for a validator, not for a provider. A keyword that
 * cannot be read, or a reference that leads nowhere in the schema, refuses nothing. Throws a RangeError beyond
 * MOST_NODES.
 */
export function modernised(raw: unknown): JsonSchema | boolean {
  const targetOf = createResolver(raw, MOST_NODES)
  const made = new Map<unknown, JsonSchema>()
  /** All that references lead to becomes definitions: its place may have another name in this form, or none. */
  const definitions = new Map<JsonSchema, string>()
  const relaxed = new Set<JsonSchema>()
  const isOlder = isRecord(raw) && OLDER.test(String(raw.$schema))
  const visit = (sub: unknown): JsonSchema | boolean => {
    if (!isRecord(sub)) return sub !== false
    const known = made.get(sub)
    if (known) return known
    if (made.size >= MOST_NODES) throw new RangeError(`more than ${MOST_NODES} subschemas`)
    const node = modernNode(sub)
    const types = [node.get('type') ?? []].flat() as string[]
    // A type that JSON Schema does not know refuses nothing.
    if (!types.every((type) => TYPES.has(type))) node.delete('type')
    withReadable(node)
    const ref = node.get('$ref')
    if (isOlder && ref !== undefined) node.clear()
    for (const keyword of ['$defs', '$ref']) node.delete(keyword)
    const target = typeof ref === 'string' ? targetOf(ref) : undefined
    if (isRecord(target)) {
      const name = definitions.get(target) ?? String(definitions.size)
      definitions.set(target, name)
      node.set('$ref', DEFINITION + name)
    }
    const modern = mapSubschemas(Object.fromEntries(node), visit)
    // Values that the declared schema offers must not be refused.
    if (modern.type !== undefined) tidyValues(modern)
    made.set(sub, modern)
    if (!isWhole(sub, modern) || UNCHECKED.some((keyword) => keyword in modern)) relaxed.add(modern)
    return modern
  }
  const schema = visit(raw)
  if (!isRecord(schema)) return schema
  const $defs: JsonSchema = {}
  // The map grows while it is read.
  for (const [target, name] of definitions) $defs[name] = visit(target)
  return withWholeTests({ ...schema, $defs }, (node) => relaxed.has(node))
}

/** Leaves of expressions what can be checked. */
function withReadable(node: Map<string, unknown>): void {
  const pattern = node.get('pattern')
  if (typeof pattern === 'string') {
    if (patternOf(pattern)) node.set('pattern', inAnyScript(pattern))
    else node.delete('pattern')
  }
  const entries = Object.entries(node.get('patternProperties') ?? {})
  const read = entries.filter(([name]) => patternOf(name))
  if (read.length === entries.length) return
  node.set('patternProperties', Object.fromEntries(read))
  // Names that only the dropped expressions match would count as additional ones.
  node.delete('additionalProperties')
}

// ---------------------------------------------------------------- types

/** Every integer is a number. */
const withoutOverlap = (types: string[]): string[] =>
  types.includes('number') ? types.filter((type) => type !== 'integer') : types

/** Names that people write for types. `any` (see knownTypes) allows every type. */
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

/** A node's types; null: any. An unknown one becomes string, and is reported, unless the node names its values. */
export function knownTypes(node: Map<string, unknown>): { types: string[] | null; isUnknown: boolean } {
  const given = [node.get('type') ?? []].flat().map((type) => String(type).toLowerCase())
  if (given.includes('any')) return { types: null, isUnknown: false }
  const types = [...new Set(given.map((type) => ALIASES[type] ?? type))].filter((type) => TYPES.has(type))
  if (types.length > 0) return { types: withoutOverlap(types), isUnknown: false }
  // As in `{ type: 'enum', enum: [...] }` (mcp-server-esa#25): the values tell their types.
  const isListed = node.has('enum') || node.has('const')
  if (given.length > 0 && !isListed) return { types: ['string'], isUnknown: true }
  const [inferred] = TELLTALES.find(([, keywords]) => keywords.some((key) => node.has(key))) ?? []
  return { types: inferred ? [inferred] : null, isUnknown: false }
}

/** Keywords by which a missing type is known, since only one type has them; the first that matches counts. */
const TELLTALES: readonly (readonly [type: string, keywords: readonly string[]])[] = [
  ['object', ['properties', 'additionalProperties', 'patternProperties']],
  ['array', ['items', 'prefixItems', 'minItems', 'maxItems']],
  ['string', ['pattern', 'minLength', 'maxLength']],
  ['number', ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum']],
]

const typeOfValue = (value: unknown): string => {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'array'
  return typeof value === 'number' && Number.isInteger(value) ? 'integer' : typeof value
}
const fits = (value: unknown, types: readonly string[]): boolean => {
  const type = typeOfValue(value)
  return types.includes(type) || (type === 'integer' && types.includes('number'))
}

/** Keeps only values that agree with the types; if none does, the types follow the values. */
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
  // A default of null on a node that cannot be null means "absent" (copilot-cli#1876).
  if (types && schema.default !== undefined && !fits(schema.default, types)) delete schema.default
}

// ---------------------------------------------------------------- references

/**
 * Finds what a reference leads to within one schema; undefined if that is nothing. A remote reference is never fetched:
 * it leads nowhere.
 */
export function createResolver(root: unknown, maxNodes: number): (ref: string) => unknown {
  let named: Map<string, JsonSchema> | null = null
  /** A node with a reference may be read thousands of times, and its reference may have thousands of steps. */
  const known = new Map<string, unknown>()
  const find = (ref: string): unknown => {
    const hash = `${ref}#`.indexOf('#')
    const base = ref.slice(0, hash)
    const fragment = decode(ref.slice(hash + 1))
    const isPointer = fragment === '' || fragment.startsWith('/')
    if (base === '' && isPointer) return valueAt(root, fragment)
    named ??= findNamed(root, maxNodes)
    if (base === '') return named.get(`#${fragment}`)
    return isPointer ? valueAt(named.get(base), fragment) : undefined
  }
  return (ref) => {
    if (!known.has(ref)) known.set(ref, find(ref))
    return known.get(ref)
  }
}

function decode(fragment: string): string {
  try {
    return decodeURIComponent(fragment)
  } catch {
    return fragment
  }
}

/** Subschemas that can be referred to by a name: `$anchor`, `$id`, and draft-04's `id`. */
function findNamed(root: unknown, maxNodes: number): Map<string, JsonSchema> {
  const named = new Map<string, JsonSchema>()
  const open = [root].filter(isRecord)
  for (let seen = 0; seen < maxNodes; seen++) {
    const node = open.pop()
    if (!node) break
    for (const key of ['$anchor', '$dynamicAnchor']) {
      if (typeof node[key] === 'string') named.set(`#${node[key]}`, node)
    }
    for (const key of ['$id', 'id']) {
      const id = node[key]
      if (typeof id === 'string') named.set(id.startsWith('#') ? id : id.replace(/#$/, ''), node)
    }
    for (const sub of subschemasOf(Object.fromEntries(modernNode(node)))) open.push(sub)
  }
  return named
}
