/** Schemas that are made to cost much are refused, or cost little. */
import t from 'tap'
import type { JsonSchema } from '../../../src/provider.ts'
import { adapt } from '../../../src/tools/schema/adapt.ts'
import { createResolver } from '../../../src/tools/schema/dialect.ts'
import { normalise } from '../../../src/tools/schema/normalise.ts'
import { clean, fitted, profile } from './targets.ts'

t.test('hostile schemas cost little and break nothing', async (t) => {
  let deep: unknown = { type: 'string' }
  for (let i = 0; i < 100_000; i++) deep = { type: 'object', properties: { a: deep } }
  t.equal(clean(deep).type, 'object', 'a schema nested a hundred thousand deep')
  const wide = Object.fromEntries(Array.from({ length: 6_000 }, (_, i) => [`p${i}`, {}]))
  t.match(normalise({ type: 'object', properties: wide }), { undeclarable: /more than 5000 subschemas/ })
  const bulky = Object.fromEntries(
    Array.from({ length: 900 }, (_, i) => [`a_rather_long_property_name_${i}`, { type: 'string' }]),
  )
  t.match(normalise({ type: 'object', properties: bulky }), { undeclarable: /larger than 32768 bytes/ })
  const many = Array.from({ length: 100_000 }, (_, i) => `v${i}`)
  t.strictSame(clean({ type: 'object', properties: { e: { type: 'string', enum: many } } }).properties, {
    e: { type: 'string' },
  })
  // Each level doubles: written out it would have 2^30 nodes.
  const $defs = Object.fromEntries(
    Array.from({ length: 30 }, (_, i) => [
      `d${i}`,
      { type: 'object', properties: { l: { $ref: `#/$defs/d${i + 1}` }, r: { $ref: `#/$defs/d${i + 1}` } } },
    ]),
  )
  const bomb = { type: 'object', properties: { x: { $ref: '#/$defs/d0' } }, $defs }
  t.ok(JSON.stringify(fitted(bomb, profile('narrow')).schema).length <= 32_768)
  const heavy = { type: 'object', properties: { x: { $ref: '#/$defs/d0', minProperties: 1 } }, $defs }
  t.ok(normalise(heavy))
  const choices = Object.fromEntries(
    Array.from({ length: 30 }, (_, i) => [
      `d${i}`,
      { anyOf: [1, 2].map(() => ({ $ref: `#/$defs/d${i + 1}` })), properties: { [`p${i}`]: {} } },
    ]),
  )
  const forked = fitted(
    { type: 'object', anyOf: [{ $ref: '#/$defs/d0' }], $defs: choices },
    profile('openai'),
  )
  t.equal(Object.keys(forked.schema.properties as JsonSchema).length, 30, 'choices that double at each level')
})

const range = <T>(count: number, make: (i: number) => T): T[] =>
  Array.from({ length: count }, (_, i) => make(i))
const map = (count: number, prefix: string, make: (i: number) => unknown) =>
  Object.fromEntries(range(count, (i) => [prefix + i, make(i)]))

t.test('variants of a property do not double with each definition', async (t) => {
  const variant = (i: number, description: string) => ({
    properties: { p: { description } },
    anyOf: [{ $ref: `#/$defs/d${i + 1}` }],
  })
  const $defs = {
    ...map(40, 'd', (i) => ({ anyOf: [variant(i, 'a'), variant(i, 'b')] })),
    d40: { properties: { p: { type: 'string' }, q: { type: 'number' } } },
  }
  const root = { type: 'object', anyOf: [{ $ref: '#/$defs/d0' }], $defs }
  const { user } = process.cpuUsage()
  const { schema } = fitted(root, profile('openai'))
  t.strictSame(Object.keys(schema.properties as JsonSchema), ['p', 'q'])
  t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 1)
})

t.test('branches that are one definition are united as one', async (t) => {
  const root = {
    type: 'object',
    anyOf: range(700, () => ({ $ref: '#/$defs/d' })),
    $defs: { d: { type: 'object', properties: map(800, 'k', () => ({})) } },
  }
  const { user } = process.cpuUsage()
  const { schema } = fitted(root, profile('openai'))
  t.equal(Object.keys(schema.properties as JsonSchema).length, 800)
  t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 0.7)
})

t.test('a schema that combines or repeats its parts too often is refused', async (t) => {
  const tooOften = { undeclarable: /repeats or combines its parts too often/ }
  const members = (count: number) => ({
    type: 'object',
    allOf: range(count, (i) => ({ properties: { [`p${i}`]: {} } })),
  })
  t.equal(Object.keys(clean(members(100)).properties as JsonSchema).length, 100)
  t.match(normalise(members(2_400)), tooOften, 'each member is merged with all members before it')
  const chain = {
    $ref: '#/$defs/d0',
    $defs: map(4_800, 'd', (i) => ({ $ref: `#/$defs/d${i + 1}` })),
  }
  t.match(
    normalise(chain),
    { undeclarable: /a chain of more than 100 references/ },
    'a chain that is deeper than any stack',
  )
  const links = map(4_800, 'd', (i) => ({ $ref: `#/$defs/d${i + 1}`, properties: { [`p${i}`]: {} } }))
  t.match(normalise({ ...chain, type: 'object', $defs: links }), { schema: { properties: { p0: {} } } })
  const again = { allOf: range(2_000, () => ({ $ref: '#/$defs/e' })) }
  const listed = { type: 'object', properties: { a: again }, $defs: { e: { enum: range(900, String) } } }
  t.match(normalise(listed), tooOften, 'a list that is referred to again and again')
  const bulky = { ...listed, $defs: { e: { enum: [{ a: range(300, (b) => ({ b })) }] } } }
  t.match(normalise(bulky), tooOften, 'a large value that is referred to again and again')

  // Each of them alone is larger than what one reading counts for.
  for (const [what, large] of Object.entries({
    names: { required: range(28_000, (i) => `n${i}`) },
    types: { type: range(60_000, () => 'x') },
    needs: { dependentRequired: map(17_000, 'n', () => ['x']) },
    text: { enum: ['x'.repeat(30_000)] },
    words: { description: 'x'.repeat(300_000) },
  })) {
    const many = map(what === 'text' ? 2_400 : 90, 'p', () => ({ $ref: '#/$defs/e', minLength: 1 }))
    const schema = { type: 'object', properties: many, $defs: { e: large } }
    t.match(normalise(schema), tooOften, `${what} that are referred to again and again`)
  }

  const lists = { type: 'object', properties: map(60, 'p', () => ({ enum: range(900, String) })) }
  t.ok(clean(lists).properties, 'long lists that are read once are fine')
  const typed = map(60, 'p', () => ({ $ref: '#/$defs/e', type: 'string' }))
  const named = { type: 'object', properties: typed, $defs: { e: { enum: range(900, String) } } }
  t.ok(clean(named).properties, 'so is one that is referred to dozens of times by its own type')
})

t.test('a reference is followed once, however often it stands in a schema', async (t) => {
  let steps = 0
  const counted = new Proxy(
    { a: { type: 'string' } },
    {
      getOwnPropertyDescriptor(root, key) {
        steps++
        return Reflect.getOwnPropertyDescriptor(root, key)
      },
    },
  )
  const resolve = createResolver(counted, 10)
  for (const _ of range(3, String)) t.strictSame(resolve('#/a'), { type: 'string' })
  for (const _ of range(3, String)) t.equal(resolve('#/b'), undefined)
  t.equal(steps, 2)
})

t.test('definitions with the same last name keep names of their own', async (t) => {
  const named = map(1_000, 'd', () => ({ x: { minLength: 1 } }))
  const alike = map(1_000, 'p', (i) => ({ $ref: `#/$defs/d${i}/x` }))
  t.match(normalise({ type: 'object', properties: alike, $defs: named }), { undeclarable: /larger than/ })
  const few = Object.fromEntries(Object.entries(alike).slice(0, 30))
  const { $defs } = clean({ type: 'object', properties: few, $defs: named })
  t.equal(Object.keys($defs as JsonSchema).length, 30)
})

t.test('a chain of definitions is not followed anew from each of its definitions', async (t) => {
  const chained = (count: number, last: unknown) => ({
    type: 'object',
    properties: { x: { $ref: '#/$defs/d0' } },
    $defs: { ...map(count, 'd', (i) => ({ $ref: `#/$defs/d${i + 1}` })), [`d${count}`]: last },
  })
  const ends = { d0: { $ref: '#/$defs/d1' }, d1: { $ref: '#/$defs/d2' } }
  t.strictSame(clean(chained(2, { type: 'null' })).$defs, { ...ends, d2: { type: 'null' } })
  t.strictSame(
    clean(chained(2, { $ref: '#/$defs/d2' })).$defs,
    { ...ends, d2: {} },
    'a circle is opened where it closes',
  )
  t.strictSame(
    clean(chained(2, { $ref: '#/$defs/d1' })).$defs,
    { d0: ends.d0, d1: {} },
    'definitions behind the circle are gone',
  )
  const { user } = process.cpuUsage()
  for (const last of [{ type: 'null' }, { $ref: '#/$defs/d4900' }]) {
    t.match(normalise(chained(4_900, last)), { undeclarable: /larger than/ })
  }
  t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 2)
})

t.test('a definition that is referred to often is not read for each reference', async (t) => {
  let reads = 0
  const leaf = {
    get type() {
      reads++
      return 'null'
    },
  }
  const body = { type: 'object', properties: map(700, 'k', () => leaf) }
  const whole = {
    type: 'object',
    properties: map(300, 'p', () => ({ $ref: '#/$defs/d' })),
    $defs: { d: body },
  }
  t.ok(adapt(whole, profile('narrow')))
  t.ok(reads >= 700 && reads < 200_000, `${reads} subschemas are read`)
})

t.test(
  'a definition is not copied for each of hundreds of references that something stands beside',
  async (t) => {
    const whole = {
      type: 'object',
      properties: map(330, 'p', () => ({ $ref: '#/$defs/d', description: 'x' })),
      $defs: { d: { type: 'object', properties: map(700, 'k', () => ({ type: 'null' })) } },
    }
    const { user } = process.cpuUsage()
    const { schema } = fitted(whole, profile('openai'))
    t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 0.5)
    t.strictSame(
      schema.properties,
      map(330, 'p', () => ({ $ref: '#/$defs/d' })),
      'the words give way',
    )
    const { d } = schema.$defs as Record<string, JsonSchema>
    t.equal(Object.keys(d?.properties as JsonSchema).length, 700, 'and the definition stays')
  },
)

t.test('long lists of required names are compared quickly', async (t) => {
  const names = range(20_000, (i) => `${i}`)
  const required = { anyOf: [{ required: names }, { required: names.toReversed() }] }
  const { user } = process.cpuUsage()
  t.ok(normalise({ type: 'object', allOf: [{ anyOf: [{ minProperties: 1 }] }, required] }))
  t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 0.3)
})

t.test('a property of characters costs little, however often expressions name it', async (t) => {
  const named = (pattern: string) => clean({ type: 'object', properties: { a: { pattern } } }).properties
  for (const pattern of ['^[\\p{L}\\P{sc=Han}-]+$', '\\\\p{2}', '\\u{70}{2}'])
    t.strictSame(named(pattern), { a: { type: 'string', pattern } }, pattern)
  for (const pattern of ['\\p{Foo}', '\\p{}', '\\pL', '[\\p{L}-z]', '(?<\\p{L}>a)'])
    t.strictSame(named(pattern), { a: { type: 'string' } }, `${pattern} is none`)
  const patterns = map(240, 'p', (i) => ({ pattern: i + '\\p{L}'.repeat(198) }))
  const { user } = process.cpuUsage()
  t.match(normalise({ type: 'object', properties: patterns }), { undeclarable: /larger than/ })
  t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 1)
})
