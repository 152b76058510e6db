/**
 * `adapt`: a clean schema (normalise.ts) as one target's profile accepts it. What the target has no word for
 * is relaxed, never tightened by much; what it would refuse is rewritten. Property names that it refuses
 * are replaced: `ownNames` gives a call's arguments their own names again, `sentNames` those that the target knows.
 */
import { canonicalJson, isRecord, sha256 } from '../../chat/json.ts'
import { once } from '../../chat/once.ts'
import type { JsonSchema, SchemaProfile } from '../../provider.ts'
import {
  definitionIn,
  definitionsOf,
  distinct,
  kindOf,
  MAX_SCHEMA_BYTES,
  mapSubschemas,
  nodesOf,
  ordered,
  withDefinitions,
} from './keywords.ts'
import { intersect, unite } from './merge.ts'
import { bytesOf, shrink } from './shrink.ts'

/** Sent property name → the server's. A sent name carries a hash, so it stands for one name wherever it is. */
export type Rename = ReadonlyMap<string, string>
/** A schema that the target takes, or why there can be none. */
export type Adapted = { schema: JsonSchema; rename: Rename | null } | { undeclarable: string }

/** How often a definition may be written out inside of itself, tried in this order; the innermost is only its kind. */
const INLINE_DEPTHS = [3, 2, 1, 0]
/** References written out in one schema. */
const MAX_INLINED = 300
/** Subschemas of one schema; behind these no more references are written out. */
const MAX_WRITTEN = 5_000
/** Values named in a description in place of an enum. */
const MAX_NAMED = 20

/** Equal schemas and profiles give equal bytes. */
export function adapt(schema: JsonSchema, profile: SchemaProfile): Adapted {
  const rename = new Map<string, string>()
  const plain = profile.refs ? schema : inlined(schema)
  const root = profile.rootCombinators ? plain : withoutRootCombinators(plain)
  const fitted = new Fitter(profile, root, rename).fit(root)
  const complete = withDefinitions(fitted, definitionsOf(fitted))
  const small = shrink(complete)
  if (!small) return { undeclarable: `its schema is larger than ${MAX_SCHEMA_BYTES} bytes` }
  return { schema: small, rename: rename.size > 0 ? rename : null }
}

type Arguments = Record<string, unknown>

/** A call's arguments with the names that the server gave. */
export const ownNames = (args: Arguments, rename: Rename | null): Arguments =>
  rename ? (renamed(args, rename) as Arguments) : args

/** … with those that the model was given for them. */
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

/** Every reference written out, a recursive one to a depth that keeps the whole small. */
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

/** Refused beside a root's `type: object` (wire/openai.md 5, wire/anthropic.md 5). */
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
  // A branch of a condition that may not apply adds properties, never demands.
  if (optional.length > 0) root = joined(root, unite([...optional, { type: 'object' }]))
  return root
}

const listOf = (value: unknown): JsonSchema[] => (Array.isArray(value) ? value.filter(isRecord) : [])

/**
 * A branch with its reference followed and its own choices united. `known` has each definition once flattened: without
 * it, two dozen definitions that name one another twice would be millions.
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
    // A definition inside of itself adds nothing.
    known.set(name, {})
    const flat = flattened(definitions.get(name) ?? {}, definitions, known)
    known.set(name, flat)
    return flat
  }
  const inner = [...listOf(branch.anyOf), ...listOf(branch.oneOf)]
  if (inner.length === 0) return branch
  const { anyOf: _, oneOf: __, ...own } = branch
  return joined(own, unite(inner.map((one) => flattened(one, definitions, known))))
}

/** The root's own word on a property wins: it holds in every branch. */
function joined(root: JsonSchema, union: JsonSchema): JsonSchema {
  const { properties, description: _, ...rest } = union
  const own = (root.properties ?? {}) as JsonSchema
  const isOpen = (sub: unknown) =>
    isRecord(sub) && Object.keys(sub).every((keyword) => keyword === 'description')
  const extra = Object.entries((properties ?? {}) as JsonSchema)
  const merged = new Map(Object.entries(own))
  for (const [key, sub] of extra) {
    const known = merged.get(key)
    if (known === undefined || isOpen(known))
      merged.set(key, { ...(sub as JsonSchema), ...(known as JsonSchema) })
  }
  const result = intersect(root, { ...rest, properties: {} })
  // `additionalProperties: false` beside branches speaks of the root's own names; the union names them all.
  return { ...result, properties: Object.fromEntries(merged) }
}

// ---------------------------------------------------------------- one profile

class Fitter {
  readonly #profile: SchemaProfile
  readonly #definitions: ReadonlyMap<string, JsonSchema>
  /** Every property name anywhere in the schema */
  readonly #names: ReadonlySet<string>
  readonly #rename: Map<string, string>

  constructor(profile: SchemaProfile, root: JsonSchema, rename: Map<string, string>) {
    this.#profile = profile
    this.#definitions = definitionsOf(root)
    this.#names = propertyNames(root)
    this.#rename = rename
  }

  /** `isWrittenOut`: the node stands in place of a reference. References below it stay, or this might never end. */
  fit(node: JsonSchema, isWrittenOut = false): JsonSchema {
    const { $ref } = node
    if (typeof $ref === 'string' && Object.keys(node).length > 1) {
      return isWrittenOut ? { $ref } : this.fit(this.#beside(node, $ref), true)
    }
    const children = mapSubschemas(this.#named(node), (sub) =>
      isRecord(sub) ? this.fit(sub, isWrittenOut) : sub,
    )
    const worded = this.#patterns(this.#values(this.#choices(this.#tests(children, node))))
    return this.#known(this.#objects(this.#arrays(worded)))
  }

  /** Nothing may stand beside a reference for some (wire/gemini.md 5.1): one level of it is written out. */
  #beside(node: JsonSchema, $ref: string): JsonSchema {
    const { $ref: _, ...beside } = node
    const target = this.#definitions.get(definitionIn($ref)) ?? {}
    return target.$ref === undefined ? { ...target, ...beside } : { $ref: target.$ref }
  }

  #has(keyword: string): boolean {
    return this.#profile.keywords?.has(keyword) ?? true
  }

  /** Without a test that has lost a word: more passes it, so that its `not` refuses more, or its `then` holds more often. */
  #tests(fitted: JsonSchema, before: JsonSchema): JsonSchema {
    const isLost = (keyword: string) => {
      const test = before[keyword]
      return isRecord(test) && canonicalJson(fitted[keyword]) !== canonicalJson(this.#spelled(test))
    }
    const lost = ['not', 'if'].filter(isLost)
    return Object.fromEntries(Object.entries(fitted).filter(([keyword]) => !lost.includes(keyword)))
  }

  /** In the target's spelling, and whole. */
  #spelled(node: JsonSchema): JsonSchema {
    const spelled = (sub: unknown) => (isRecord(sub) ? this.#spelled(sub) : sub)
    return this.#listed(mapSubschemas(this.#named(node), spelled))
  }

  #choices(node: JsonSchema): JsonSchema {
    const { anyOf, oneOf, ...rest } = node
    // A member that says nothing any more makes the whole choice say nothing.
    const isOpen = (list: unknown) => listOf(list).some(isEmpty)
    const any = isOpen(anyOf) ? undefined : anyOf
    const one = isOpen(oneOf) ? undefined : oneOf
    const isKnown = this.#has('oneOf')
    const choice = any ?? (isKnown ? undefined : one)
    return {
      ...rest,
      ...(choice === undefined ? {} : { anyOf: choice }),
      ...(isKnown && one !== undefined ? { oneOf: one } : {}),
    }
  }

  #listed(node: JsonSchema): JsonSchema {
    const { const: value, ...rest } = node
    const isKnown = value === undefined || (this.#profile.const && this.#has('const'))
    return isKnown ? node : { ...rest, enum: [value] }
  }

  #values(node: JsonSchema): JsonSchema {
    const listed = this.#listed(node)
    return Array.isArray(listed.enum) && !this.#profile.mixedEnums ? textEnum(listed, listed.enum) : listed
  }

  #patterns(node: JsonSchema): JsonSchema {
    const isUnread = (pattern: string) => this.#profile.unreadPattern?.test(pattern) === true
    const fit = { ...node }
    if (typeof fit.pattern === 'string' && isUnread(fit.pattern)) delete fit.pattern
    const isKept = (name: string) => this.#has('patternProperties') && !isUnread(name)
    if (Object.keys(fit.patternProperties ?? {}).every(isKept)) return fit
    // Without them, the names that they matched would count as additional ones.
    const { patternProperties: _, additionalProperties: __, ...rest } = fit
    return rest
  }

  #arrays(node: JsonSchema): JsonSchema {
    if (!Array.isArray(node.prefixItems) || (this.#profile.tuples && this.#has('prefixItems'))) return node
    const { prefixItems, ...rest } = node
    const rested = isRecord(rest.items) && Object.keys(rest.items).length > 0 ? [rest.items] : []
    const kinds = [...listOf(prefixItems), ...rested]
    const members = distinct(kinds)
    const isAny = members.some(isEmpty)
    const [only] = members
    return { ...rest, items: isAny || !only ? {} : members.length === 1 ? only : { anyOf: members } }
  }

  #objects(node: JsonSchema): JsonSchema {
    const bounded = this.#bounds(node)
    if (!Array.isArray(bounded.required)) return bounded
    const properties = isRecord(bounded.properties) ? bounded.properties : {}
    const required = bounded.required.filter((key) => Object.hasOwn(properties, key))
    const { required: _, ...rest } = bounded
    return required.length > 0 ? { ...rest, required } : rest
  }

  /** An exclusive bound where only inclusive ones are known. */
  #bounds(node: JsonSchema): JsonSchema {
    const bounded = { ...node }
    const isWhole = node.type === 'integer'
    for (const [exclusive, inclusive, next, stricter] of [
      ['exclusiveMinimum', 'minimum', (bound: number) => Math.floor(bound) + 1, Math.max],
      ['exclusiveMaximum', 'maximum', (bound: number) => Math.ceil(bound) - 1, Math.min],
    ] as const) {
      const bound = node[exclusive]
      if (this.#has(exclusive) || typeof bound !== 'number') continue
      const nearest = isWhole ? next(bound) : bound
      bounded[inclusive] = stricter(nearest, Number(node[inclusive] ?? nearest))
    }
    return bounded
  }

  #named(node: JsonSchema): JsonSchema {
    if (!isRecord(node.properties)) return node
    const sent = new Map(Object.keys(node.properties).map((key) => [key, this.#sentName(key)]))
    if ([...sent].every(([key, name]) => key === name)) return node
    const nameOf = (key: string) => sent.get(key) ?? key
    const names = (list: unknown) => (list as string[]).map(nameOf)
    const map = (keyword: string, fn: (value: unknown, key: string) => unknown) => {
      const entries = Object.entries((node[keyword] ?? {}) as JsonSchema)
      const renamed = entries.map(([key, value]) => [nameOf(key), fn(value, key)])
      return entries.length > 0 ? { [keyword]: Object.fromEntries(renamed) } : {}
    }
    return {
      ...node,
      ...map('properties', (sub, key) =>
        nameOf(key) === key || !isRecord(sub) ? sub : described(sub, `Original name: ${key}`),
      ),
      ...(node.required ? { required: names(node.required) } : {}),
      ...map('dependentRequired', names),
      ...map('dependentSchemas', (sub) => sub),
    }
  }

  #sentName(key: string): string {
    if (this.#profile.propertyPattern.test(key)) return key
    const legal = key.replace(/[^A-Za-z0-9_]/gu, '_').slice(0, 40)
    const stem = /^[A-Za-z_]/.test(legal) ? legal : `_${legal}`
    for (let digits = 6; ; digits += 2) {
      const name = `${stem}_${sha256(key).slice(0, digits)}`
      // A server may have given this very name to another property.
      if (this.#names.has(name) || (this.#rename.get(name) ?? key) !== key) continue
      this.#rename.set(name, key)
      return name
    }
  }

  /** Only the profile's keywords, in their order. */
  #known(node: JsonSchema): JsonSchema {
    return ordered(node, (keyword) => this.#has(keyword) || keyword === '$defs' || keyword === '$ref')
  }
}

const isEmpty = (schema: unknown): boolean => isRecord(schema) && Object.keys(schema).length === 0

const propertyNames = (schema: JsonSchema): ReadonlySet<string> =>
  new Set(nodesOf(schema).flatMap(({ properties }) => Object.keys(properties ?? {})))

/** The schema with one more sentence in its description. */
function described(schema: JsonSchema, sentence: string): JsonSchema {
  const { description } = schema
  return {
    ...schema,
    description: typeof description === 'string' ? `${description}\n${sentence}` : sentence,
  }
}

/**
 * An enum for a target that knows only texts (wire/gemini.md 5.1: the type must then be string too, and an
 * empty text is refused). Numbers keep their type and are named in the description: as texts they would
 * come back as texts, which the server refuses.
 */
function textEnum(node: JsonSchema, values: unknown[]): JsonSchema {
  const { enum: _, ...rest } = node
  const texts = values.filter((value) => typeof value === 'string' && value !== '')
  const others = values.filter((value) => typeof value !== 'string' && value !== null)
  if (others.length > 0 || texts.length === 0) {
    const named = values.slice(0, MAX_NAMED).map((value) => JSON.stringify(value))
    return described(rest, `One of: ${named.join(', ')}${values.length > MAX_NAMED ? ', …' : ''}`)
  }
  if (!values.includes(null)) return { ...rest, type: 'string', enum: texts }
  const { type: __, description, ...beside } = rest
  const choice = { anyOf: [{ ...beside, type: 'string', enum: texts }, { type: 'null' }] }
  return description === undefined ? choice : { description, ...choice }
}
