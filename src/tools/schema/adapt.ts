/**
 * `adapt`: a clean schema (normalise.ts) as one target's profile accepts it. Rules that the target has no keyword for
 * are relaxed, never tightened by much; forms that it would refuse are rewritten. Property names that it refuses are
 * replaced: `ownNames` gives a call's arguments the server's names again, `sentNames` those that the target knows.
 */
import { isRecord, sha256 } from '../../chat/json.ts'
import { once } from '../../chat/once.ts'
import type { JsonSchema, SchemaProfile } from '../../provider.ts'
import { oneLine } from '../../text.ts'
import {
  definitionIn,
  definitionsOf,
  kindOf,
  listOf,
  MAX_SCHEMA_BYTES,
  mapSubschemas,
  nodesOf,
  ordered,
  typesOf,
  withDefinitions,
} from './keywords.ts'
import { intersect, unite } from './merge.ts'
import { bytesOf, shrink } from './shrink.ts'
import { withWholeTests } from './whole.ts'
import { Words } from './words.ts'

/** Sent property name → the server's. A sent name carries a hash, so it stands for one name wherever it is. */
export type Rename = ReadonlyMap<string, string>
/** A schema that the target takes, or why there can be none. */
export type Adapted = { schema: JsonSchema; rename: Rename | null } | { undeclarable: string }

/**
 * How often a definition may be written out inside itself, tried in this order; of the innermost only its kind is left.
 */
const INLINE_DEPTHS = [3, 2, 1, 0]
/** Most references that are written out in one schema. */
const MAX_INLINED = 300
/** Subschemas of one schema; after this many no more references are written out. */
const MAX_WRITTEN = 5_000

/** Equal schemas and profiles give equal bytes. */
export function adapt(schema: JsonSchema, profile: SchemaProfile): Adapted {
  const rename = new Map<string, string>()
  const words = new Words(profile)
  const areEnough = once((node: JsonSchema) => words.areEnoughFor(node))
  const whole = withWholeTests(schema, (node) => !areEnough(node))
  const plain = profile.refs ? whole : inlined(whole)
  const root = withoutRootCombinators(plain)
  const sentName = namerFor(profile, root, rename)
  const fit = (mostWritten: number) => fitted(root, words, mostWritten, sentName)
  const detailed = fit(MAX_WRITTEN)
  // A reference without the words beside it says more than what would be left of many copies.
  const complete = bytesOf(detailed) > MAX_SCHEMA_BYTES ? fit(0) : detailed
  const typed = profile.typedArguments ? withTypedArguments(complete) : complete
  const small = shrink(profile.openObjects ? withOpenObjects(typed) : typed)
  return 'schema' in small ? { ...small, rename: rename.size > 0 ? rename : null } : small
}

/** Keywords that say of which types a value may be */
const TELLING = ['type', 'enum', 'const', '$ref', 'anyOf', 'oneOf']
const ANYTHING: readonly JsonSchema[] = [
  { type: 'string' },
  { type: 'number' },
  { type: 'boolean' },
  { type: 'object', properties: {} },
  { type: 'array', items: {} },
  { type: 'null' },
]

const withTypedArguments = (root: JsonSchema): JsonSchema =>
  withProperties(root, (sub) =>
    TELLING.some((keyword) => keyword in sub) ? sub : ordered({ ...sub, anyOf: ANYTHING }),
  )

/** The node with properties that went through `fn`. */
function withProperties(node: JsonSchema, fn: (sub: JsonSchema) => JsonSchema): JsonSchema {
  const entries = Object.entries((node.properties ?? {}) as Record<string, JsonSchema>)
  return { ...node, properties: Object.fromEntries(entries.map(([key, sub]) => [key, fn(sub)])) }
}

/** The root stays as it is: without properties, it is that of a tool that takes no arguments. */
const withOpenObjects = (root: JsonSchema): JsonSchema =>
  mapSubschemas(root, (sub) => (isRecord(sub) ? opened(withOpenObjects(sub)) : sub))

function opened(node: JsonSchema): JsonSchema {
  const isObject = typesOf(node)?.includes('object') && Object.keys(node.properties ?? {}).length === 0
  return isObject && node.additionalProperties === undefined
    ? ordered({ ...node, additionalProperties: true })
    : node
}

type Arguments = Record<string, unknown>

/** A call's arguments with the names that the server gave. */
export const ownNames = (args: Arguments, rename: Rename | null): Arguments =>
  rename ? (renamed(args, rename) as Arguments) : args

/** … with the names that the model was given. */
export const sentNames = (args: Arguments, rename: Rename | null): Arguments =>
  rename ? (renamed(args, sentByOwn(rename)) as Arguments) : args

/** The server's property name → the sent one. */
export const sentByOwn = once(
  (rename: Rename): Rename => new Map([...rename].map(([sent, own]) => [own, sent])),
)

function renamed(value: unknown, rename: Rename): unknown {
  if (Array.isArray(value)) return value.map((item) => renamed(item, rename))
  if (!isRecord(value)) return value
  const entries = Object.entries(value).map(([key, item]) => [rename.get(key) ?? key, renamed(item, rename)])
  return Object.fromEntries(entries)
}

// ---------------------------------------------------------------- references

/** The schema with every reference written out, recursive ones to a depth that keeps the whole small. */
function inlined(schema: JsonSchema): JsonSchema {
  if (schema.$defs === undefined) return schema
  let last: JsonSchema = schema
  for (const depth of INLINE_DEPTHS) {
    last = writtenOut(schema, depth)
    if (bytesOf(last) <= MAX_SCHEMA_BYTES) return last
  }
  return last
}

function writtenOut(schema: JsonSchema, depth: number): JsonSchema {
  const definitions = definitionsOf(schema)
  const { $defs: _, ...root } = schema
  let count = 0
  let written = 0
  const visit = (sub: unknown, within: readonly string[]): unknown => {
    if (!isRecord(sub)) return sub
    written++
    if (typeof sub.$ref !== 'string') return mapSubschemas(sub, (inner) => visit(inner, within))
    const { $ref, ...beside } = sub
    const name = definitionIn($ref)
    const target = definitions.get(name) ?? {}
    const repeats = within.filter((one) => one === name).length
    const isDeep = repeats >= Math.max(depth, 1) || within.length > 8
    const isTooMuch = isDeep || ++count > MAX_INLINED || written > MAX_WRITTEN
    if (isTooMuch || (depth === 0 && within.length > 0))
      return { ...kindOf(real(target, definitions)), ...beside }
    const body = visit(target, [...within, name])
    return { ...(body as JsonSchema), ...beside }
  }
  return visit(root, []) as JsonSchema
}

/** A definition, or the one that it merely refers to. */
const real = ({ $ref, ...own }: JsonSchema, definitions: ReadonlyMap<string, JsonSchema>): JsonSchema =>
  $ref === undefined ? own : (definitions.get(definitionIn($ref)) ?? {})

// ---------------------------------------------------------------- the root

/** Keywords that vendors refuse beside a root's `type: object` (wire/openai.md 5, wire/anthropic.md 5). */
const ROOT_COMBINATORS = [
  'anyOf',
  'oneOf',
  'allOf',
  'not',
  'enum',
  'const',
  'if',
  'then',
  'else',
  'dependentSchemas',
]

/** The root's choices as one object: every property of every branch, required where all branches agree. */
function withoutRootCombinators(schema: JsonSchema): JsonSchema {
  const kept = Object.entries(schema).filter(([keyword]) => !ROOT_COMBINATORS.includes(keyword))
  let root: JsonSchema = Object.fromEntries(kept)
  const definitions = definitionsOf(schema)
  const known = new Map<string, JsonSchema>()
  for (const keyword of ['anyOf', 'oneOf']) {
    const branches = listOf(schema[keyword]).map((branch) => flattened(branch, definitions, known))
    if (branches.length > 0) root = joined(root, unite(branches))
  }
  const conditional = [
    schema.then,
    schema.else,
    ...Object.values((schema.dependentSchemas ?? {}) as JsonSchema),
  ]
  const optional = conditional.filter(isRecord).map((branch) => flattened(branch, definitions, known))
  // A condition's branch may not apply: it adds properties, but requires none.
  if (optional.length > 0) root = joined(root, unite([...optional, { type: 'object' }]))
  return root
}

/**
 * A branch with its reference followed and its own choices united. `known` has each definition once flattened: without
 * it, two dozen definitions that name one another twice would become millions.
 */
function flattened(
  branch: JsonSchema,
  definitions: ReadonlyMap<string, JsonSchema>,
  known: Map<string, JsonSchema>,
): JsonSchema {
  const { $ref } = branch
  if (typeof $ref === 'string') {
    const name = definitionIn($ref)
    const found = known.get(name)
    if (found) return found
    // A definition inside itself adds nothing.
    known.set(name, {})
    const flat = bearable(flattened(definitions.get(name) ?? {}, definitions, known))
    known.set(name, flat)
    return flat
  }
  const inner = [...listOf(branch.anyOf), ...listOf(branch.oneOf)]
  if (inner.length === 0) return branch
  const { anyOf: _, oneOf: __, ...own } = branch
  return joined(own, unite(inner.map((one) => flattened(one, definitions, known))))
}

/**
 * Of the properties of a branch that has become too large, only their kinds. Variants of a property that hold one
 * another would double with each definition that they pass.
 */
const bearable = (branch: JsonSchema): JsonSchema =>
  bytesOf(branch) <= MAX_SCHEMA_BYTES ? branch : withProperties(branch, kindOf)

/** What the root itself says of a property wins: it holds in every branch. */
function joined(root: JsonSchema, union: JsonSchema): JsonSchema {
  const { properties, ...rest } = union
  const isOpen = (sub: unknown) =>
    isRecord(sub) && Object.keys(sub).every((keyword) => keyword === 'description')
  const merged = new Map(Object.entries((root.properties ?? {}) as JsonSchema))
  for (const [key, sub] of Object.entries(properties as JsonSchema)) {
    const known = merged.get(key)
    if (known === undefined) merged.set(key, sub)
    else if (isOpen(known)) merged.set(key, { ...(sub as JsonSchema), ...(known as JsonSchema) })
  }
  const result = intersect(root, { ...rest, properties: {} })
  // `additionalProperties: false` beside branches means the root's own names; the union has the names of all.
  return { ...result, properties: Object.fromEntries(merged) }
}

// ---------------------------------------------------------------- one profile

/** `mostWritten`: how many nodes may come in place of references. `sentName`: a property's name as it is sent. */
function fitted(
  root: JsonSchema,
  words: Words,
  mostWritten: number,
  sentName: (key: string) => string,
): JsonSchema {
  const definitions = definitionsOf(root)
  let room = mostWritten
  /** `isWrittenOut`: the node stands in place of a reference. References below it stay, or this might never end. */
  const fit = (node: JsonSchema, isWrittenOut = false): JsonSchema => {
    const { $ref } = node
    if (isWrittenOut) room--
    if (typeof $ref === 'string' && Object.keys(node).length > 1) {
      if (isWrittenOut || room <= 0) return { $ref }
      const { $ref: _, ...beside } = node
      // Some targets take nothing beside a reference (wire/gemini.md 5.1): one level of it is written out.
      const target = definitions.get(definitionIn($ref)) ?? {}
      return fit(target.$ref === undefined ? { ...target, ...beside } : { $ref: target.$ref }, true)
    }
    const children = mapSubschemas(named(node, sentName), (sub) =>
      isRecord(sub) ? fit(sub, isWrittenOut) : sub,
    )
    return words.of(children)
  }
  const whole = fit(root)
  return withDefinitions(whole, definitionsOf(whole))
}

/** The node with the names that are sent, of properties that it does not declare itself, too: others may. */
function named(node: JsonSchema, sentName: (key: string) => string): JsonSchema {
  const names = (list: unknown) => (list as string[]).map(sentName)
  const map = (keyword: string, fn: (value: unknown, key: string) => unknown) => {
    const entries = Object.entries((node[keyword] ?? {}) as JsonSchema)
    const renamed = entries.map(([key, value]) => [sentName(key), fn(value, key)])
    return entries.length > 0 ? { [keyword]: Object.fromEntries(renamed) } : {}
  }
  return {
    ...node,
    ...map('properties', (sub, key) =>
      sentName(key) === key || !isRecord(sub) ? sub : described(sub, `Original name: ${oneLine(key)}`),
    ),
    ...(node.required ? { required: names(node.required) } : {}),
    ...map('dependentRequired', names),
    ...map('dependentSchemas', (sub) => sub),
  }
}

/** Names properties of the schema for the target; each name that is not the server's goes into `rename`. */
function namerFor(
  { propertyPattern }: SchemaProfile,
  schema: JsonSchema,
  rename: Map<string, string>,
): (key: string) => string {
  const given = new Set(nodesOf(schema).flatMap(({ properties }) => Object.keys(properties ?? {})))
  return (key) => {
    if (propertyPattern.test(key)) return key
    const legal = key.replace(/[^A-Za-z0-9_]/gu, '_').slice(0, 40)
    const stem = /^[A-Za-z_]/.test(legal) ? legal : `_${legal}`
    for (let digits = 6; ; digits += 2) {
      const name = `${stem}_${sha256(key).slice(0, digits)}`
      // A server may have given this very name to another property.
      if (given.has(name) || (rename.get(name) ?? key) !== key) continue
      rename.set(name, key)
      return name
    }
  }
}

/** The schema with one more sentence in its description. */
function described(schema: JsonSchema, sentence: string): JsonSchema {
  const { description } = schema
  return {
    ...schema,
    description: typeof description === 'string' ? `${description}\n${sentence}` : sentence,
  }
}
