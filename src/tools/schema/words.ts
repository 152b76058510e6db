/** One node of a clean schema in the words (keywords) of one target; rules that it has no words for are relaxed. */
import { isDeepStrictEqual } from 'node:util'
import { isRecord } from '../../chat/json.ts'
import type { JsonSchema, SchemaProfile } from '../../provider.ts'
import { distinct, listOf, ordered } from './keywords.ts'

export class Words {
  readonly #profile: SchemaProfile

  constructor(profile: SchemaProfile) {
    this.#profile = profile
  }

  /** The node in these words. Its subschemas are left as they are. */
  of(node: JsonSchema): JsonSchema {
    const worded = this.#listed(this.#choices(this.#titled(node)))
    return this.#known(this.#objects(this.#arrays(this.#patterns(worded))))
  }

  /** Whether the target has words for all that the node itself says. */
  areEnoughFor(node: JsonSchema): boolean {
    const isOut = node.$ref !== undefined && !this.#profile.refs
    return !isOut && isDeepStrictEqual(this.of(node), this.#listed(this.#titled(node)))
  }

  #has(keyword: string): boolean {
    return this.#profile.takes?.(keyword) ?? true
  }

  /** For a target without `title`, a title of several words is the description if there is no other. */
  #titled(node: JsonSchema): JsonSchema {
    if (node.title === undefined || this.#has('title')) return node
    const { title, ...rest } = node
    return rest.description === undefined && /\s/.test(String(title)) ? { ...rest, description: title } : rest
  }

  #choices(node: JsonSchema): JsonSchema {
    const { anyOf, oneOf, ...rest } = node
    // If a member says nothing any more, neither does the whole choice.
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
    const isKnown = value === undefined || this.#has('const')
    return isKnown ? node : { ...rest, enum: [value] }
  }

  #patterns(node: JsonSchema): JsonSchema {
    const isUnread = (pattern: string) => this.#profile.unreadPattern?.test(pattern) === true
    const fit = { ...node }
    if (typeof fit.pattern === 'string' && isUnread(fit.pattern)) delete fit.pattern
    const isKept = (name: string) => this.#has('patternProperties') && !isUnread(name)
    if (Object.keys(fit.patternProperties ?? {}).every(isKept)) return fit
    // Names that only the dropped expressions match would count as additional ones.
    const { patternProperties: _, additionalProperties: __, ...rest } = fit
    return rest
  }

  #arrays(node: JsonSchema): JsonSchema {
    if (!Array.isArray(node.prefixItems) || this.#has('prefixItems')) return node
    const { prefixItems, ...rest } = node
    const members = distinct(listOf([prefixItems, rest.items].flat()))
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

  /** Writes an exclusive bound as an inclusive one, if the target knows only those. */
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

  /** Only the profile's keywords, in their order. */
  #known(node: JsonSchema): JsonSchema {
    return ordered(node, (keyword) => this.#has(keyword) || keyword === '$defs' || keyword === '$ref')
  }
}

const isEmpty = (schema: unknown): boolean => isRecord(schema) && Object.keys(schema).length === 0
