/**
 * `normalise`: a server's input schema, whatever its draft and however odd, as one clean canonical schema,
 * or the reason why it cannot be declared. Bounded in depth, nodes and bytes, and therefore in time;
 * nothing is fetched. What a clean schema guarantees, every adapter and profile may rely on:
 * the root is an object with `properties`; no boolean subschema (but `additionalProperties`); types are
 * known ones; objects have `properties` and arrays `items` or `prefixItems`; beside `properties`, `required` names some of
 * them; no `allOf`; bounds are numbers; every `$ref` leads to `#/$defs/…` with only annotations beside it; keys
 * stand in one order. It may be wider than the server's schema; calls are validated against that one.
 *
 * keywords.ts is the clean schema's language, dialect.ts knows what people write, definitions.ts what references lead
 * to, merge.ts and shrink.ts make one of two and a small one of a large one, whole.ts drops tests that were relaxed,
 * work.ts counts the work of reading. adapt.ts and words.ts fit the clean schema to a provider, validate.ts checks a
 * call's arguments against the server's own schema.
 */
import { isRecord } from '../../chat/json.ts'
import type { JsonSchema } from '../../provider.ts'
import { Definitions } from './definitions.ts'
import { createResolver, knownTypes, modernNode, ofUnlisted, tidyValues } from './dialect.ts'
import {
  annotationsOf,
  asType,
  isAnnotation,
  isPattern,
  keptOf,
  listOf,
  ordered,
  typesOf,
  withDefinitions,
} from './keywords.ts'
import { intersect, unite } from './merge.ts'
import { shrink } from './shrink.ts'
import { isWhole, withWholeTests } from './whole.ts'
import { workOf } from './work.ts'

/** A clean schema, or why the tool cannot be declared. */
export type Normalised = { schema: JsonSchema } | { undeclarable: string }

/** Subschema levels; a deeper subschema accepts anything. */
const MAX_DEPTH = 32
/** Subschemas in all, expanded references included (mcp.md 8). */
const MAX_NODES = 5_000
/**
 * Most members of objects and lists that are read or merged, in all. References and `allOf` may read the same parts
 * again and again: without this bound a schema of 135 kB took seconds.
 */
const MAX_WORK = 100_000
/** Most references in a chain, each with more keywords beside it: the stack holds no more. */
const MAX_CHAIN = 100

class Undeclarable extends Error {}

/** Reads a schema of any draft, hostile ones too, within bounds of work. */
export function normalise(inputSchema: unknown): Normalised {
  try {
    return shrink(new Cleaner(inputSchema).root())
  } catch (thrown) {
    if (thrown instanceof Undeclarable) return { undeclarable: thrown.message }
    throw thrown
  }
}

/** Brings one schema to its clean form; holds what is known of its nodes, and the work spent. */
class Cleaner {
  readonly #raw: unknown
  readonly #targetOf: (ref: string) => unknown
  readonly #definitions = new Definitions()
  /** Nodes being expanded in place: meeting one again is an endless cycle. */
  readonly #expanding = new Set<JsonSchema>()
  /** Clean nodes that say less than the server's */
  readonly #relaxed = new WeakSet<JsonSchema>()
  /** Clean nodes whose type nobody knows: `file` and the like. */
  readonly #unknown = new WeakSet<JsonSchema>()
  /** Nodes of the server's schema that were read already */
  readonly #read = new WeakSet<JsonSchema>()
  #nodes = 0
  #work = 0

  constructor(raw: unknown) {
    this.#raw = raw
    this.#targetOf = createResolver(raw, MAX_NODES)
  }

  root(): JsonSchema {
    const schema = this.#flat(this.#raw, 1)
    if (schema === false) throw new Undeclarable('its schema accepts no arguments at all')
    const types = schema ? typesOf(schema) : null
    if (types && !types.includes('object')) {
      throw new Undeclarable(`its schema describes ${types.join(' or ')}, not an object`)
    }
    const object = ordered({ properties: {}, ...schema, type: 'object' })
    for (const definition of this.#definitions.all()) definition.schema = this.#some(definition.raw, 1)
    this.#definitions.openCycles(() => this.#open())
    const complete = withDefinitions(object, this.#definitions.schemas())
    return withWholeTests(complete, (node) => this.#relaxed.has(node))
  }

  readonly #spend = (work: number): void => {
    this.#work += work
    if (this.#work > MAX_WORK) throw new Undeclarable('its schema repeats or combines its parts too often')
  }

  /** Clean form of one subschema; false: nothing fits it. */
  #schema(raw: unknown, depth: number): JsonSchema | false {
    if (raw === false) return false
    if (!isRecord(raw)) return {}
    if (depth > MAX_DEPTH) return this.#open()
    if (++this.#nodes > MAX_NODES) throw new Undeclarable(`its schema has more than ${MAX_NODES} subschemas`)
    this.#spend(workOf(raw, this.#read.has(raw)))
    this.#read.add(raw)
    const clean = this.#node(modernNode(raw), depth)
    if (clean && !isWhole(raw, clean)) this.#relaxed.add(clean)
    return clean
  }

  /** … but a subschema that nothing fits accepts anything. */
  #some(raw: unknown, depth: number): JsonSchema {
    return this.#schema(raw, depth) || this.#open()
  }

  #open(): JsonSchema {
    const open = {}
    this.#relaxed.add(open)
    return open
  }

  #node(node: Map<string, unknown>, depth: number): JsonSchema | false {
    const target = this.#referred(node)
    if (target === undefined) return this.#plain(node, depth)
    const { raw, ref } = target
    // As pydantic's JsonValue: a reference would hide that the value may be anything.
    if (Object.keys(raw).every(isAnnotation)) {
      this.#spend(workOf(raw, true))
      return this.#plain(new Map([...modernNode(raw), ...node]), depth)
    }
    const isBare = [...node.keys()].every((key) => isAnnotation(key) || key === '$ref' || key === '$defs')
    const isCycle = this.#expanding.has(raw)
    if (!isBare && !isCycle) {
      // The keywords beside a reference and its target hold together.
      return this.#plain(
        new Map(node).set('allOf', [raw, ...((node.get('allOf') as unknown[]) ?? [])]),
        depth,
      )
    }
    const { $ref } = this.#definitions.of(raw, raw === this.#raw ? 'root' : ref)
    return { $ref, ...annotationsOf(node) }
  }

  /** The record that a node's reference leads to; undefined if it has no reference, or one that leads nowhere. */
  #referred(node: Map<string, unknown>): { raw: JsonSchema; ref: string } | undefined {
    const all = node.get('allOf')
    const only: unknown = Array.isArray(all) && all.length === 1 ? all[0] : null
    // pydantic wraps a reference that has a description beside it into an allOf of one.
    const isWrapped = !node.has('$ref') && isRecord(only) && Object.keys(only).join() === '$ref'
    const ref = isWrapped ? only.$ref : node.get('$ref')
    if (typeof ref !== 'string') return undefined
    if (isWrapped) node.delete('allOf')
    const found = this.#targetOf(ref)
    return isRecord(found) ? { raw: found, ref } : undefined
  }

  /** Clean form without a `$ref` at its top; null if following it would never end. */
  #flat(raw: unknown, depth: number): JsonSchema | false | null {
    if (!isRecord(raw)) return this.#schema(raw, depth)
    if (this.#expanding.has(raw)) return null
    if (this.#expanding.size >= MAX_CHAIN)
      throw new Undeclarable(`its schema has a chain of more than ${MAX_CHAIN} references`)
    this.#expanding.add(raw)
    try {
      const schema = this.#schema(raw, depth)
      return schema && this.#followed(schema, depth)
    } finally {
      this.#expanding.delete(raw)
    }
  }

  /** A clean schema with the reference at its top followed; null if that would never end. */
  #followed(schema: JsonSchema, depth: number): JsonSchema | false | null {
    if (schema.$ref === undefined) return schema
    const target = this.#definitions.at(schema.$ref)
    const base = target ? this.#flat(target.raw, depth) : null
    const { $ref: _, ...beside } = schema
    return base ? intersect(base, beside, this.#spend) : base
  }

  /** A node without a reference: its own keywords, and its `allOf` folded in. */
  #plain(node: Map<string, unknown>, depth: number): JsonSchema | false {
    const own = this.#own(node, depth)
    const parts = [own]
    let schema = own
    for (const member of (node.get('allOf') as unknown[] | undefined) ?? []) {
      const clean = this.#flat(member, depth + 1)
      if (clean === false) return false
      if (!clean) continue
      parts.push(clean)
      schema = intersect(schema, clean, this.#spend)
    }
    // A member's description belongs to its part only; the node's own wins.
    const said = Object.entries(own).filter(([keyword]) => isAnnotation(keyword))
    const complete = completed({
      ...this.#withOneOfEach(schema, parts, depth),
      ...Object.fromEntries(said),
    })
    if (this.#unknown.has(own)) this.#unknown.add(complete)
    return complete
  }

  /**
   * Several conditions have no simple form: all are dropped. Of several choices the first stays. The properties of the
   * dropped branches are named, and none of them is required.
   */
  #withOneOfEach(schema: JsonSchema, parts: readonly JsonSchema[], depth: number): JsonSchema {
    const isConditional = parts.filter((part) => 'if' in part).length > 1
    const others = (choice: string) =>
      parts.flatMap((part) => (choice in part ? [part[choice]] : [])).slice(1)
    const branches = [
      ...(isConditional ? parts.flatMap((part) => [part.then, part.else]) : []),
      ...[...others('anyOf'), ...others('oneOf')].flat(),
    ]
    if (branches.length === 0) return schema
    const { if: _, then: __, else: ___, ...unconditional } = schema
    const rest = isConditional ? unconditional : schema
    const { properties } = unite(this.#ledTo(branches, depth, new Set()))
    if (Object.keys(properties as JsonSchema).length === 0) return rest
    const own = rest.properties as JsonSchema | undefined
    // Its own properties stand first, and win.
    return { ...rest, properties: { ...own, ...(properties as JsonSchema), ...own } }
  }

  /** Branches and their own choices. References are followed, each of them once. */
  #ledTo(branches: unknown, depth: number, seen: Set<unknown>): JsonSchema[] {
    return listOf(branches).flatMap((branch) => {
      if (branch.$ref !== undefined && seen.has(branch.$ref)) return []
      seen.add(branch.$ref)
      const flat = this.#followed(branch, depth)
      if (!flat) return []
      return [flat, ...this.#ledTo(flat.anyOf, depth, seen), ...this.#ledTo(flat.oneOf, depth, seen)]
    })
  }

  #own(node: Map<string, unknown>, depth: number): JsonSchema {
    const { types, isUnknown } = knownTypes(node)
    const schema: JsonSchema = types ? { type: asType(types) } : {}
    for (const [keyword, value] of node) {
      const kept = keptOf(keyword, value, types)
      if (kept !== undefined) schema[keyword] = kept
    }
    this.#objects(node, schema, depth + 1)
    this.#arrays(node, schema, depth + 1)
    this.#choices(node, schema, depth + 1)
    tidyValues(schema)
    if (isUnknown) this.#unknown.add(schema)
    return schema
  }

  #objects(node: Map<string, unknown>, schema: JsonSchema, depth: number): void {
    const types = typesOf(schema)
    if (types && !types.includes('object')) return
    const required = new Set((node.get('required') as string[] | undefined) ?? [])
    const isTyped = types !== null && node.has('type')
    const properties = this.#properties(node, required, isTyped, depth)
    if (properties) schema.properties = properties
    if (required.size > 0) schema.required = [...required]
    for (const keyword of ['patternProperties', 'dependentSchemas']) {
      const map = node.get(keyword)
      if (isRecord(map)) schema[keyword] = this.#map(map, depth, keyword === 'patternProperties')
    }
    // Names that only a dropped expression matches would count as additional ones.
    const isWhole = Object.keys(node.get('patternProperties') ?? {}).every(isPattern)
    const additional = isWhole ? node.get('additionalProperties') : undefined
    if (typeof additional === 'boolean') schema.additionalProperties = additional
    else if (additional !== undefined) {
      const clean = this.#schema(additional, depth)
      schema.additionalProperties = clean && Object.keys(clean).length === 0 ? true : clean
    }
    const names = node.get('propertyNames')
    if (isRecord(names)) schema.propertyNames = this.#some(names, depth)
  }

  #properties(
    node: Map<string, unknown>,
    required: Set<string>,
    isTyped: boolean,
    depth: number,
  ): JsonSchema | null {
    const properties = node.get('properties')
    if (!isRecord(properties) && !isTyped) return null
    const entries: [string, unknown][] = []
    for (const [key, sub] of Object.entries(properties ?? {})) {
      // draft-03 says `required: true` on the property itself.
      if (isRecord(sub) && sub.required === true) required.add(key)
      const clean = this.#schema(sub, depth)
      if (clean === false) required.delete(key)
      else if (required.has(key) || !this.#unknown.has(clean)) entries.push([key, clean])
    }
    const known = new Set(entries.map(([key]) => key))
    const unlisted = [...required].filter((key) => !known.has(key))
    // Gemini refuses a required name without a property (wire/gemini.md 5.1), and a model must see the name anyway.
    const said = ofUnlisted(node, unlisted.length)
    for (const key of unlisted) entries.push([key, this.#some(said, depth)])
    return Object.fromEntries(entries)
  }

  #map(map: JsonSchema, depth: number, isPatterns: boolean): JsonSchema {
    const entries = Object.entries(map).flatMap(([key, sub]): [string, unknown][] => {
      const clean = isPatterns && !isPattern(key) ? false : this.#schema(sub, depth)
      return clean ? [[key, clean]] : []
    })
    return Object.fromEntries(entries)
  }

  #arrays(node: Map<string, unknown>, schema: JsonSchema, depth: number): void {
    const types = typesOf(schema)
    if (types && !types.includes('array')) return
    const prefix = node.get('prefixItems')
    if (Array.isArray(prefix)) schema.prefixItems = prefix.map((sub) => this.#some(sub, depth))
    const items = this.#schema(node.get('items'), depth)
    const length = Array.isArray(prefix) ? prefix.length : 0
    if (items === false) schema.maxItems = Math.min(Number(schema.maxItems ?? length), length)
    else if (node.has('items') && (length === 0 || Object.keys(items).length > 0)) schema.items = items
    const contains = node.get('contains')
    if (isRecord(contains)) schema.contains = this.#some(contains, depth)
  }

  #choices(node: Map<string, unknown>, schema: JsonSchema, depth: number): void {
    for (const keyword of ['anyOf', 'oneOf']) {
      const list = node.get(keyword)
      if (!Array.isArray(list)) continue
      const clean = list.map((sub) => this.#schema(sub, depth)).filter((sub) => sub !== false)
      const known = clean.filter((sub) => !this.#unknown.has(sub))
      const kept = known.length > 0 ? known : clean
      // A choice with a member that allows anything constrains nothing, and one without members is a mistake.
      if (kept.length > 0 && kept.every((sub) => Object.keys(sub).length > 0)) schema[keyword] = kept
    }
    for (const keyword of ['not', 'if', 'then', 'else']) {
      const sub = node.get(keyword)
      if (isRecord(sub)) schema[keyword] = this.#some(sub, depth)
    }
  }
}

/** Gives objects `properties` and arrays `items`: OpenAI refuses them without (wire/openai.md 5). */
function completed(schema: JsonSchema): JsonSchema {
  const types = typesOf(schema)
  const filled = { ...schema }
  if (types?.includes('object')) filled.properties ??= {}
  if (types?.includes('array') && !filled.prefixItems) filled.items ??= {}
  return ordered(filled)
}
