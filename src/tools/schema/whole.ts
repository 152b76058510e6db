/**
 * The tests of a schema: `not`, `if`, and `oneOf`, of whose members only one may fit. A schema that is relaxed takes more;
 * one with a relaxed test may take less than the server's. So a test is kept whole, or not at all.
 */
import { isDeepStrictEqual } from 'node:util'
import { isRecord } from '../../chat/json.ts'
import type { JsonSchema } from '../../provider.ts'
import {
  DEFINITION,
  definitionsOf,
  isAnnotation,
  KEYWORD_ORDER,
  mapSubschemas,
  nodesOf,
  ordered,
  placeOf,
} from './keywords.ts'

const TESTS = ['not', 'if', 'oneOf']
/** What says something of validity, beside the keywords that are kept. */
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

/** Whether a node says all that the raw one says of validity; of its subschemas, only whether they are there. */
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

/** A node without those of its tests that are not to be kept; of a `oneOf`, any member may then fit. */
export function withTests(node: JsonSchema, isKept: (test: JsonSchema) => boolean): JsonSchema {
  const isLost = (keyword: string) => [node[keyword] ?? []].flat().some((test) => !isKept(test as JsonSchema))
  const lost = TESTS.filter(isLost)
  if (lost.length === 0) return node
  const rest = Object.entries(node).filter(([keyword]) => !lost.includes(keyword))
  return ordered({ ...(lost.includes('oneOf') ? { anyOf: node.oneOf } : {}), ...Object.fromEntries(rest) })
}

/** A clean schema without the tests of which a part is relaxed, or a definition that they lead to. */
export function withWholeTests(schema: JsonSchema, isRelaxed: (node: JsonSchema) => boolean): JsonSchema {
  const definitions = [...definitionsOf(schema)].map(
    ([name, definition]) => [DEFINITION + name, nodesOf(definition)] as const,
  )
  const relaxed = new Set(definitions.flatMap(([ref, nodes]) => (nodes.some(isRelaxed) ? [ref] : [])))
  // The set grows while it is read.
  for (const target of relaxed)
    for (const [ref, nodes] of definitions) if (nodes.some(({ $ref }) => $ref === target)) relaxed.add(ref)
  const isKept = (test: JsonSchema) =>
    nodesOf(test).every((node) => !isRelaxed(node) && !relaxed.has(String(node.$ref)))
  const visit = (node: JsonSchema): JsonSchema =>
    mapSubschemas(withTests(node, isKept), (sub) => (isRecord(sub) ? visit(sub) : sub))
  return visit(schema)
}
