/** Whatever a server's schema takes, the declared schema takes, too, and so does the schema that checks calls. */
import { Ajv2020 } from 'ajv/dist/2020.js'
import fc from 'fast-check'
import t from 'tap'
import type { JsonSchema } from '../../../src/provider.ts'
import { adapt } from '../../../src/tools/schema/adapt.ts'
import { modernised } from '../../../src/tools/schema/dialect.ts'
import { normalise } from '../../../src/tools/schema/normalise.ts'
import { PROFILES, sentForm } from './targets.ts'

// Nearly all of the time goes into compiling.
const code = { optimize: false }
const ajv = new Ajv2020({ strict: false, validateFormats: false, logger: false, code })
/** Says whether a schema takes a value; null if this cannot be told, since a reference leads in a circle. */
function judgeOf(schema: JsonSchema): (value: unknown) => boolean | null {
  try {
    const validate = ajv.compile(schema)
    ajv.removeSchema(schema)
    return (value) => {
      try {
        return validate(value) as boolean
      } catch {
        return null
      }
    }
  } catch {
    return () => null
  }
}

const scalar = fc.constantFrom<unknown>('', 'a', 'ab', 'b', 0, 1, 2.5, 7, true, null)
const name = fc.constantFrom('a', 'b', 'c d')
// Plain objects only, as JSON has: ajv takes one without a prototype for unlike its equal.
const { value } = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 3, withCrossShrink: true },
    scalar,
    fc.array(tie('value'), { maxLength: 3 }),
    fc.dictionary(name, tie('value'), { maxKeys: 3, noNullPrototype: true }),
  ),
}))

/** Types are always named: a missing type is guessed, and the guess may take less. */
const { schema } = fc.letrec<{ schema: JsonSchema; deeper: unknown }>((tie) => {
  const sub = tie('schema')
  const some = (model: Record<string, fc.Arbitrary<unknown>>, always: JsonSchema) =>
    fc.record(model, { requiredKeys: [] }).map((own) => ({ ...always, ...own }))
  const pattern = fc.constantFrom('^a', '(?=^b)', '^(a)\\1$')
  const count = fc.integer({ min: 0, max: 2 })
  const number = fc.constantFrom(0, 1, 2.5)
  const names = fc.uniqueArray(name, { minLength: 1, maxLength: 2 })
  const plain: fc.Arbitrary<JsonSchema>[] = [
    fc.constantFrom<JsonSchema>({}, { type: ['string', 'null'] }, { type: 'boolean' }),
    fc.uniqueArray(scalar, { minLength: 1, maxLength: 3 }).map((list) => ({ enum: list })),
    scalar.map((only) => ({ const: only })),
    some({ pattern, minLength: count, maxLength: count }, { type: 'string' }),
    some(
      { minimum: number, maximum: number, exclusiveMinimum: number, multipleOf: fc.constant(2) },
      { type: 'number' },
    ),
    fc.constantFrom('a', 'b').map((which) => ({ $ref: `#/$defs/${which}` })),
  ]
  const list = fc.array(sub, { minLength: 1, maxLength: 2 })
  return {
    deeper: sub,
    schema: fc.oneof(
      { maxDepth: 4, depthSize: 'small', withCrossShrink: true },
      fc.oneof(...plain),
      some(
        {
          properties: fc.dictionary(name, sub, { maxKeys: 2 }),
          required: names,
          additionalProperties: fc.oneof(fc.boolean(), sub),
          patternProperties: fc.dictionary(pattern, sub, { maxKeys: 1 }),
          unevaluatedProperties: fc.constant(false),
          dependentRequired: fc.dictionary(name, names, { maxKeys: 1 }),
          maxProperties: count,
        },
        { type: 'object' },
      ),
      some(
        {
          items: fc.oneof(fc.constant(false), sub),
          maxItems: count,
          uniqueItems: fc.constant(true),
        },
        { type: 'array' },
      ),
      // A tuple that says nothing of further items is declared as if it had no items of another kind.
      fc.record({ type: fc.constant('array'), prefixItems: list, items: fc.oneof(fc.constant(false), sub) }),
      // No `prefixItems` beside `contains`: ajv takes an empty list there.
      some({ contains: sub, minContains: count }, { type: 'array' }),
      sub.map((not) => ({ not })),
      list.map((oneOf) => ({ oneOf })),
      list.map((anyOf) => ({ anyOf })),
      list.map((allOf) => ({ allOf })),
      fc.tuple(sub, sub, sub).map(([test, then, otherwise]) => ({ if: test, then, else: otherwise })),
      fc
        .tuple(fc.constantFrom('a', 'b'), sub)
        .map(([which, beside]) => ({ ...beside, $ref: `#/$defs/${which}` })),
    ),
  }
})

const given = fc.record({ p: schema, a: schema, b: schema, values: fc.array(value, { minLength: 8 }) })
const rawOf = ({ p, a, b }: { p: unknown; a: unknown; b: unknown }) => ({
  type: 'object',
  properties: { p },
  $defs: { a, b },
})
const RUNS = { seed: Number(process.env.SEED ?? 1), numRuns: Number(process.env.RUNS ?? 200) }

t.test('no declared schema takes less than the server does', async () => {
  fc.assert(
    fc.property(given, ({ values, ...parts }) => {
      const raw = rawOf(parts)
      const taken = values.map((one) => ({ p: one })).filter(judgeOf(raw))
      const clean = normalise(raw)
      if ('undeclarable' in clean) return
      for (const [target, profile] of Object.entries(PROFILES)) {
        const declared = adapt(clean.schema, profile)
        if ('undeclarable' in declared) continue
        const takes = judgeOf(declared.schema)
        const refused = taken.filter((args) => takes(sentForm(args, declared.rename)) === false)
        if (refused.length > 0) throw new Error(`${target}: ${JSON.stringify([refused, declared.schema])}`)
      }
    }),
    RUNS,
  )
})

t.test('no call that the server takes is refused', async () => {
  fc.assert(
    fc.property(given, ({ values, ...parts }) => {
      const raw = rawOf(parts)
      const taken = values.map((one) => ({ p: one })).filter(judgeOf(raw))
      const read = modernised(raw)
      const takes = judgeOf(read as JsonSchema)
      const refused = taken.filter((args) => takes(args) === false)
      if (refused.length > 0) throw new Error(JSON.stringify([refused, read]))
    }),
    RUNS,
  )
})
