/** Bad requests, made from the OpenAPI document: every field of every body, every kind of wrong value. */
import type { Document, Schema } from './document.ts'

const JUNK: unknown[] = [
  null,
  true,
  7,
  -1.5,
  1e308,
  '',
  'x',
  '\u0000',
  '\ud800',
  'x'.repeat(9000),
  [],
  {},
  [1],
  [null],
  { a: 1 },
]
/** Odd texts for query and path parameters, percent-encoded where they must be. */
export const ODD_TEXTS = [
  '',
  'x',
  '-1',
  '1e9',
  'true',
  'null',
  '%F0%9F%92%A9',
  '9'.repeat(400),
  "';--",
  '%5B%5D',
  '2026-13-45T99:99:99Z',
]

/** Bodies near a good one: each field of it, at every depth, replaced by what does not belong there. */
function* mutations(value: unknown): Generator<unknown> {
  if (Array.isArray(value)) {
    for (const [i, item] of value.entries()) {
      for (const junk of JUNK) yield value.with(i, junk)
      for (const changed of mutations(item)) yield value.with(i, changed)
    }
  } else if (typeof value === 'object' && value !== null) {
    for (const [key, item] of Object.entries(value)) {
      const { [key]: _, ...without } = value as Record<string, unknown>
      yield without
      for (const junk of JUNK) yield { ...value, [key]: junk }
      for (const changed of mutations(item)) yield { ...value, [key]: changed }
    }
    yield { ...value, unknown_field: 1 }
  }
}

/** A value with every field that a schema names, so that none is left out of the sweep. */
function sample(schema: Schema, resolve: (schema: Schema) => Schema): unknown {
  const { type, properties = {}, items, oneOf, anyOf, enum: values } = resolve(schema)
  const branch = (oneOf ?? anyOf)?.[0]
  if (branch) return sample(branch, resolve)
  if (values) return values[0]
  const kind = Array.isArray(type) ? type[0] : type
  if (kind === 'object') {
    return Object.fromEntries(Object.entries(properties).map(([key, field]) => [key, sample(field, resolve)]))
  }
  if (kind === 'array') return items ? [sample(items, resolve)] : []
  return { string: 'x', integer: 1, number: 1, boolean: true }[kind ?? ''] ?? 'x'
}

/** A good body, then bad ones; `example` is one that the document shows. */
export function* badBodies(schema: Schema, example: unknown, document: Document): Generator<unknown> {
  const resolve = (schema: Schema): Schema =>
    schema.$ref ? resolve(document.components.schemas[schema.$ref.split('/').at(-1) ?? ''] as Schema) : schema
  const shapes = resolve(schema).oneOf ?? [schema]
  const good = shapes.map((shape, i) => ({
    ...(sample(shape, resolve) as object),
    ...(i === 0 ? (example as object) : {}),
  }))
  yield good[0]
  yield* JUNK
  for (const one of good) yield* mutations(one)
}
