/** Makes a clean schema that is too large smaller, in steps: first explanations go, then restrictions. */
import { isRecord } from '../../chat/json.ts'
import type { JsonSchema } from '../../provider.ts'
import {
  definitionsOf,
  kindOf,
  MAX_SCHEMA_BYTES,
  mapSubschemas,
  typesOf,
  withDefinitions,
} from './keywords.ts'
import type { Normalised } from './normalise.ts'
import { withTests } from './whole.ts'

type Step = (node: JsonSchema, depth: number) => JsonSchema

const without =
  (...keywords: string[]): Step =>
  (node) =>
    Object.fromEntries(Object.entries(node).filter(([keyword]) => !keywords.includes(keyword)))

/** Of an object or array at this depth or deeper, only its kind is left. */
const collapsed =
  (from: number): Step =>
  (node, depth) => {
    const isNested = typesOf(node)?.some((type) => type === 'object' || type === 'array')
    return depth >= from && isNested ? kindOf(node) : node
  }

const STEPS: readonly Step[] = [
  without('examples', 'title', 'default'),
  (node, depth) => (depth > 2 ? without('description')(node, depth) : node),
  // The following steps relax the schema, and no test may be relaxed: all tests go.
  (node) => withTests(node, () => false),
  (node) => (Array.isArray(node.enum) && node.enum.length > 50 ? without('enum')(node, 0) : node),
  collapsed(5),
  collapsed(3),
  collapsed(2),
  (node, depth) => (depth > 0 ? without('description')(node, depth) : node),
  without('anyOf', 'then', 'else', 'dependentSchemas'),
  collapsed(1),
]

/** The length of its JSON in bytes. */
export const bytesOf = (schema: JsonSchema): number => Buffer.byteLength(JSON.stringify(schema))

/** The schema within MAX_SCHEMA_BYTES, as little changed as needed; undeclarable if nothing helps. */
export function shrink(schema: JsonSchema): Normalised {
  let smaller = schema
  if (bytesOf(smaller) <= MAX_SCHEMA_BYTES) return { schema: smaller }
  for (const step of STEPS) {
    const stepped = applied(smaller, step, 0)
    smaller = withDefinitions(stepped, definitionsOf(stepped))
    if (bytesOf(smaller) <= MAX_SCHEMA_BYTES) return { schema: smaller }
  }
  return { undeclarable: `its schema is larger than ${MAX_SCHEMA_BYTES} bytes` }
}

function applied(node: JsonSchema, step: Step, depth: number): JsonSchema {
  return mapSubschemas(step(node, depth), (sub) => (isRecord(sub) ? applied(sub, step, depth + 1) : sub))
}
