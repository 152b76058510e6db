/** Every provider's profile of schemas, and strict checkers that stand in for the providers. */
import { Ajv2020 } from 'ajv/dist/2020.js'
import { DEPLOYMENTS } from '../../../providers/index.ts'
import type { JsonSchema, SchemaProfile } from '../../../src/provider.ts'
import { adapt, type Rename } from '../../../src/tools/schema/adapt.ts'
import { KEYWORD_ORDER, mapSubschemas } from '../../../src/tools/schema/keywords.ts'
import { normalise } from '../../../src/tools/schema/normalise.ts'

const NARROW =
  'type format description enum items minItems maxItems minimum maximum anyOf properties additionalProperties required'.split(
    ' ',
  )
const LETTERS = /^[A-Za-z_][A-Za-z0-9_]{0,63}$/
/**
 * Every profile under the first provider that has it, since others may share it. `narrow` knows less than any of them:
 * the keywords of OpenAPI's subset.
 */
export const PROFILES: Record<string, SchemaProfile> = {
  ...firstOfEach(),
  narrow: {
    refs: false,
    propertyPattern: LETTERS,
    takes: (keyword) => NARROW.includes(keyword),
  },
}

function firstOfEach(): Record<string, SchemaProfile> {
  const names = new Map<SchemaProfile, string>()
  for (const { deployment } of DEPLOYMENTS) {
    if (!names.has(deployment.schema)) names.set(deployment.schema, deployment.provider)
  }
  return Object.fromEntries([...names].map(([schema, name]) => [name, schema]))
}

/** All subschemas of a schema, at every depth, and the schema itself. */
function subschemas(root: JsonSchema): JsonSchema[] {
  const found: JsonSchema[] = []
  const visit = (sub: unknown): unknown => {
    if (typeof sub !== 'object' || sub === null) return sub
    found.push(sub as JsonSchema)
    return mapSubschemas(sub as JsonSchema, visit)
  }
  visit(root)
  return found
}

const TYPES = new Set(['string', 'number', 'integer', 'boolean', 'object', 'array', 'null'])
export const typesOf = (schema: JsonSchema): string[] => [schema.type ?? []].flat() as string[]

/** What every provider refuses. */
function* commonFaults(root: JsonSchema): Generator<string> {
  if (root.type !== 'object') yield 'root is no object'
  for (const keyword of ['anyOf', 'oneOf', 'allOf', 'enum', 'not']) {
    if (keyword in root) yield `${keyword} at the root`
  }
  for (const sub of subschemas(root)) {
    for (const keyword of Object.keys(sub)) {
      if (!KEYWORD_ORDER.includes(keyword)) yield `unknown keyword ${keyword}`
    }
    const types = typesOf(sub)
    if (types.some((type) => !TYPES.has(type))) yield `type ${types}`
    if (types.includes('object') && !sub.properties) yield 'object without properties'
    if (types.includes('array') && !sub.items && !sub.prefixItems) yield 'array without items'
    for (const key of (sub.required ?? []) as string[]) {
      if (!Object.hasOwn((sub.properties ?? {}) as object, key)) yield `required ${key} is no property`
    }
    if (typeof sub.$ref === 'string' && Object.keys(sub).length > 1) yield 'siblings of $ref'
  }
}

/** wire/openai.md 5: no const, arrays have items, and no pattern that OpenAI does not read. */
function* openaiFaults(root: JsonSchema): Generator<string> {
  yield* commonFaults(root)
  for (const sub of subschemas(root)) {
    for (const pattern of [sub.pattern ?? [], Object.keys(sub.patternProperties ?? {})].flat()) {
      if (/\(\?[=!<]|\\p/i.test(String(pattern))) yield `pattern ${pattern}`
    }
    if ('const' in sub) yield 'const'
    if (typesOf(sub).includes('array') && (!sub.items || sub.prefixItems)) yield 'array without one items'
  }
}

const draft2020 = new Ajv2020({ strict: false, validateFormats: false })

/**
 * wire/anthropic.md 5: a valid 2020-12 schema with legal property names and references that lead somewhere. Arguments
 * without a type arrive as texts (anthropics/claude-code#82652).
 */
function* anthropicFaults(root: JsonSchema): Generator<string> {
  yield* commonFaults(root)
  for (const [key, sub] of Object.entries((root.properties ?? {}) as Record<string, object>)) {
    if (!['type', 'anyOf', 'oneOf', 'enum', 'const', '$ref'].some((word) => word in sub))
      yield `untyped ${key}`
  }
  if (!draft2020.validateSchema(root)) yield `metaschema: ${draft2020.errorsText()}`
  for (const sub of subschemas(root)) {
    for (const key of Object.keys(sub.properties ?? {})) {
      if (!/^[a-zA-Z0-9_.-]{1,64}$/.test(key)) yield `property ${key}`
    }
    const name = typeof sub.$ref === 'string' ? sub.$ref.slice('#/$defs/'.length) : null
    if (name !== null && !Object.hasOwn((root.$defs ?? {}) as object, name)) yield `reference to ${name}`
    for (const pattern of [sub.pattern ?? [], Object.keys(sub.patternProperties ?? {})].flat()) {
      if (new RegExp(String(pattern), 'u').source === '') yield `pattern ${pattern}`
    }
  }
}

/**
 * wire/gemini.md 5.1: no references, no const, names of letters; arrays have items or a tuple. No titles, which it takes
 * for functions (googleapis/python-genai#1732), and no lengths of lists, whose sum it limits (googleapis/python-genai#2170).
 */
function* geminiFaults(root: JsonSchema): Generator<string> {
  yield* narrowRules(root)
  for (const sub of subschemas(root)) {
    if ('maxItems' in sub) yield 'maxItems'
    // livekit/agents#7312
    const isFree = typesOf(sub).includes('object') && Object.keys(sub.properties ?? {}).length === 0
    if (sub !== root && isFree && sub.additionalProperties === undefined) yield 'object without a key to fill'
  }
}

function* narrowRules(root: JsonSchema): Generator<string> {
  yield* commonFaults(root)
  for (const sub of subschemas(root)) {
    for (const keyword of ['$ref', '$defs', 'const', 'title']) if (keyword in sub) yield keyword
    for (const key of Object.keys(sub.properties ?? {})) if (!LETTERS.test(key)) yield `property ${key}`
  }
}

/** Gemini's rules, and only the keywords that `narrow` knows. */
export function* narrowFaults(root: JsonSchema): Generator<string> {
  yield* narrowRules(root)
  for (const sub of subschemas(root)) {
    for (const keyword of Object.keys(sub)) {
      if (!NARROW.includes(keyword)) yield `keyword ${keyword}`
    }
  }
}

const CHECKERS: Record<string, (root: JsonSchema) => Iterable<string>> = {
  openai: openaiFaults,
  anthropic: anthropicFaults,
  gemini: geminiFaults,
  narrow: narrowFaults,
}

/** What the provider whose profile has this name would refuse. */
export function faultsIn(schema: JsonSchema, name: string): string[] {
  const check = CHECKERS[name]
  return check ? [...check(schema)] : [`CHECKERS of test/tools/schema/targets.ts has no line for ${name}`]
}

export const clean = (raw: unknown): JsonSchema => {
  const result = normalise(raw)
  if ('undeclarable' in result) throw new Error(result.undeclarable)
  return result.schema
}
type Adapted = { schema: JsonSchema; rename: Rename | null }
export const adapted = (canonical: JsonSchema, profile: SchemaProfile): Adapted => {
  const result = adapt(canonical, profile)
  if ('undeclarable' in result) throw new Error(result.undeclarable)
  return result
}
export const fitted = (raw: unknown, profile: SchemaProfile): Adapted => adapted(clean(raw), profile)
export const profile = (name: string): SchemaProfile => {
  const found = PROFILES[name]
  if (!found) throw new Error(`no profile ${name}`)
  return found
}

/** Arguments as a model would write them for renamed properties. */
export function sentForm(value: unknown, rename: Rename | null): unknown {
  const forward = new Map([...(rename ?? [])].map(([sent, own]) => [own, sent]))
  const visit = (item: unknown): unknown => {
    if (Array.isArray(item)) return item.map(visit)
    if (typeof item !== 'object' || item === null) return item
    return Object.fromEntries(Object.entries(item).map(([key, sub]) => [forward.get(key) ?? key, visit(sub)]))
  }
  return visit(value)
}
