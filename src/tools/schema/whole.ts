/**
 * The tests of a schema: `not`, `if`, and `oneOf` (only one of its members may fit). A relaxed schema accepts more than
 * the server's, but with a relaxed test it may accept less. So a test is kept whole, or not at all.
 */
import { isDeepStrictEqual } from 'node:util'
import { isRecord } from '../../chat/json.ts'
import type { JsonSchema } from '../../provider.ts'
import {
  definitionIn,
  definitionsOf,
  isAnnotation,
  KEYWORD_ORDER,
  mapSubschemas,
  nodesOf,
  ordered,
  placeOf,
  subschemasOf,
} from './keywords.ts'

const TESTS = ['not', 'if', 'oneOf']
/** Keywords that say something about validity and are not kept. */
const UNKNOWN = [
  'unevaluatedProperties',
  'unevaluatedItems',
  'minContains',
  'maxContains',
  '$dynamicRef',
  '$recursiveRef',
]
const KNOWN: ReadonlySet<string> = new Set(
  KEYWORD_ORDER.filter((keyword) => !isAnnotation(keyword) && keyword !== '$defs'),
)

/** Whether a node says all that the raw node says about validity. Of subschemas it checks only that they are there. */
export function isWhole(raw: JsonSchema, node: JsonSchema): boolean {
  return Object.entries(raw).every(([keyword, value]) => {
    if (!KNOWN.has(keyword)) return !UNKNOWN.includes(keyword)
    const said = node[keyword]
    switch (placeOf(keyword)) {
      case undefined:
        return keyword === '$ref' ? said !== undefined : isDeepStrictEqual(said, value)
      case 'list':
        return Array.isArray(said) && Array.isArray(value) && said.length === value.length
      case 'map':
        return (
          isRecord(said) && isRecord(value) && Object.keys(value).every((key) => Object.hasOwn(said, key))
        )
      default:
        return said !== undefined
    }
  })
}

/** A node without the tests that are not to be kept; of a dropped `oneOf`, any member may then fit. */
export function withTests(node: JsonSchema, isKept: (test: JsonSchema) => boolean): JsonSchema {
  const isLost = (keyword: string) => [node[keyword] ?? []].flat().some((test) => !isKept(test as JsonSchema))
  const lost = TESTS.filter(isLost)
  if (lost.length === 0) return node
  const rest = Object.entries(node).filter(([keyword]) => !lost.includes(keyword))
  return ordered({ ...(lost.includes('oneOf') ? { anyOf: node.oneOf } : {}), ...Object.fromEntries(rest) })
}

/** A schema without tests that have a relaxed part, or a reference to one. Its references are a clean schema's. */
export function withWholeTests(schema: JsonSchema, isRelaxed: (node: JsonSchema) => boolean): JsonSchema {
  const nodes = nodesOf(schema)
  // Few schemas have any.
  if (!nodes.some((node) => TESTS.some((test) => test in node))) return schema
  const definitions = definitionsOf(schema)
  const users = new Map<unknown, JsonSchema[]>()
  for (const node of nodes) {
    const use = (sub: unknown) => {
      const known = users.get(sub)
      if (known) known.push(node)
      else users.set(sub, [node])
    }
    for (const sub of subschemasOf(node)) use(sub)
    if (node.$ref !== undefined) use(definitions.get(definitionIn(node.$ref)))
  }
  const relaxed = new Set(nodes.filter(isRelaxed))
  // The set grows while it is read.
  for (const node of relaxed) for (const user of users.get(node) ?? []) relaxed.add(user)
  const visit = (node: JsonSchema): JsonSchema =>
    mapSubschemas(
      withTests(node, (test) => !relaxed.has(test)),
      (sub) => (isRecord(sub) ? visit(sub) : sub),
    )
  return visit(schema)
}
