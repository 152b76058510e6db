/** Schemas of any draft, as every provider can take them; strict checkers stand in for the providers. */
import { readdirSync, readFileSync } from 'node:fs'
import { Ajv2020 } from 'ajv/dist/2020.js'
import fc from 'fast-check'
import t from 'tap'
import { DEPLOYMENTS } from '../../providers/index.ts'
import type { JsonSchema, SchemaProfile } from '../../src/provider.ts'
import { normalise } from '../../src/tools/schema.ts'
import { adapt, type Rename, renameBack } from '../../src/tools/schema-adapt.ts'
import { KEYWORD_ORDER, mapSubschemas } from '../../src/tools/schema-dialect.ts'

const FIXTURES = new URL('../../../test/fixtures/mcp-tools/', import.meta.url)

interface Listed {
  name: string
  inputSchema: unknown
}
const read = (file: string): unknown => JSON.parse(readFileSync(new URL(file, FIXTURES), 'utf8'))
const allTools: Listed[] = readdirSync(FIXTURES).flatMap((file) => {
  const content = read(file) as Listed[] | { tools: Listed[] }
  return Array.isArray(content) ? content : content.tools
})

// ---------------------------------------------------------------- the profiles and what checks them

const LETTERS = /^[A-Za-z_][A-Za-z0-9_]{0,63}$/
/** Every provider's profile, which its deployments share, and one that knows less than any: the keywords of OpenAPI's subset. */
const PROFILES: Record<string, SchemaProfile> = {
  ...Object.fromEntries(DEPLOYMENTS.map(({ deployment }) => [deployment.provider, deployment.schema])),
  narrow: {
    rootCombinators: false,
    const: false,
    tuples: false,
    refs: false,
    mixedEnums: false,
    propertyPattern: LETTERS,
    keywords: new Set(
      'type format title description enum items minItems maxItems minimum maximum anyOf properties additionalProperties required'.split(
        ' ',
      ),
    ),
  },
}

/** Every subschema, wherever it stands. */
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
const typesOf = (schema: JsonSchema): string[] => [schema.type ?? []].flat() as string[]

/** What all of them refuse. */
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

/** wire/openai.md 5: no const, arrays have items. */
function* openaiFaults(root: JsonSchema): Generator<string> {
  yield* commonFaults(root)
  for (const sub of subschemas(root)) {
    if ('const' in sub) yield 'const'
    if (typesOf(sub).includes('array') && (!sub.items || sub.prefixItems)) yield 'array without one items'
  }
}

const draft2020 = new Ajv2020({ strict: false, validateFormats: false })

/** wire/anthropic.md 5: a valid 2020-12 schema with legal property names and references that lead somewhere. */
function* anthropicFaults(root: JsonSchema): Generator<string> {
  yield* commonFaults(root)
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

/** wire/gemini.md 5.1: no references, no const, names of letters; arrays have items or a tuple. */
function* geminiFaults(root: JsonSchema): Generator<string> {
  yield* commonFaults(root)
  for (const sub of subschemas(root)) {
    for (const keyword of ['$ref', '$defs', 'const']) if (keyword in sub) yield keyword
    for (const key of Object.keys(sub.properties ?? {})) if (!LETTERS.test(key)) yield `property ${key}`
  }
}

/** The older `parameters` form on top: known keywords only, enums of texts on type string. */
function* narrowFaults(root: JsonSchema): Generator<string> {
  yield* geminiFaults(root)
  for (const sub of subschemas(root)) {
    for (const keyword of Object.keys(sub)) {
      if (!PROFILES.narrow?.keywords?.has(keyword)) yield `keyword ${keyword}`
    }
    if (!sub.enum) continue
    if (sub.type !== 'string') yield `enum on type ${sub.type}`
    for (const value of sub.enum as unknown[]) {
      if (typeof value !== 'string' || value === '') yield `enum value ${JSON.stringify(value)}`
    }
  }
}

const CHECKERS: Record<string, (root: JsonSchema) => Iterable<string>> = {
  openai: openaiFaults,
  anthropic: anthropicFaults,
  gemini: geminiFaults,
  narrow: narrowFaults,
}

const clean = (raw: unknown): JsonSchema => {
  const result = normalise(raw)
  if ('undeclarable' in result) throw new Error(result.undeclarable)
  return result.schema
}
const fitted = (raw: unknown, profile: SchemaProfile): { schema: JsonSchema; rename: Rename | null } => {
  const result = adapt(clean(raw), profile)
  if ('undeclarable' in result) throw new Error(result.undeclarable)
  return result
}
const profile = (name: string): SchemaProfile => {
  const found = PROFILES[name]
  if (!found) throw new Error(`no profile ${name}`)
  return found
}

// ---------------------------------------------------------------- sample arguments

/** Arguments that a clean schema should allow: every property, or only the required ones. */
function sample(schema: JsonSchema, root: JsonSchema, isFull: boolean, depth = 0): unknown {
  if (typeof schema.$ref === 'string') {
    const name = schema.$ref.slice('#/$defs/'.length)
    return sample((root.$defs as Record<string, JsonSchema>)[name] ?? {}, root, isFull, depth + 1)
  }
  if (schema.const !== undefined) return schema.const
  if (Array.isArray(schema.enum)) return schema.enum[0]
  const branch = ((schema.anyOf ?? schema.oneOf) as JsonSchema[] | undefined)?.[0]
  if (branch && schema.type === undefined) return sample(branch, root, isFull, depth)
  const [type] = typesOf(schema)
  if (type === 'object') {
    const properties = Object.entries((schema.properties ?? {}) as Record<string, JsonSchema>)
    const required = (schema.required ?? []) as string[]
    const kept = properties.filter(([key]) => required.includes(key) || (isFull && depth < 4))
    return Object.fromEntries(kept.map(([key, sub]) => [key, sample(sub, root, isFull, depth + 1)]))
  }
  if (type === 'array') {
    const prefix = (schema.prefixItems ?? []) as JsonSchema[]
    const count = Math.max(Number(schema.minItems ?? 0), isFull && depth < 4 ? 1 : 0)
    const kinds = Array.from(
      { length: Math.max(count, prefix.length) },
      (_, i) => prefix[i] ?? schema.items ?? {},
    )
    return kinds.map((kind) => sample(kind as JsonSchema, root, isFull, depth + 1))
  }
  if (type === 'string') return 'x'.repeat(Math.max(1, Number(schema.minLength ?? 1)))
  if (type === 'integer' || type === 'number') {
    const least = Number(
      schema.minimum ?? (schema.exclusiveMinimum === undefined ? 1 : Number(schema.exclusiveMinimum) + 1),
    )
    return Math.min(least, Number(schema.maximum ?? least))
  }
  if (type === 'boolean') return true
  return type === 'null' ? null : 'anything'
}

const validator = new Ajv2020({ strict: false, validateFormats: false, logger: false })
/** Arguments as a model would write them for renamed properties. */
function sentForm(value: unknown, rename: Rename | null): unknown {
  const forward = new Map([...(rename ?? [])].map(([sent, own]) => [own, sent]))
  const visit = (item: unknown): unknown => {
    if (Array.isArray(item)) return item.map(visit)
    if (typeof item !== 'object' || item === null) return item
    return Object.fromEntries(Object.entries(item).map(([key, sub]) => [forward.get(key) ?? key, visit(sub)]))
  }
  return visit(value)
}

// ---------------------------------------------------------------- tests

t.test('every tool of every known list can be declared to every provider', async (t) => {
  t.ok(allTools.length > 450, 'the lists are there')
  for (const { deployment } of DEPLOYMENTS) t.equal(deployment.schema, PROFILES[deployment.provider])
  for (const [name, profile] of Object.entries(PROFILES)) {
    const faults = allTools.flatMap((tool) => {
      const { schema } = fitted(tool.inputSchema, profile)
      return [...(CHECKERS[name]?.(schema) ?? ['no checker'])].map((fault) => `${tool.name}: ${fault}`)
    })
    t.strictSame(faults, [], name)
  }
})

t.test('a clean schema and its adapted forms take what the server takes', async (t) => {
  let checked = 0
  const wrong: unknown[] = []
  const allows = (schema: JsonSchema) => {
    const validate = validator.compile(schema)
    validator.removeSchema(schema)
    return validate
  }
  for (const tool of new Map(allTools.map((one) => [one.name, one])).values()) {
    const canonical = clean(tool.inputSchema)
    const own = allows(canonical)
    const samples = [false, true]
      .map((isFull) => sample(canonical, canonical, isFull))
      .filter((one) => own(one))
    for (const [name, profile] of Object.entries(PROFILES)) {
      const { schema, rename } = fitted(tool.inputSchema, profile)
      const isSame = JSON.stringify(schema) === JSON.stringify(canonical)
      const takes = isSame ? own : allows(schema)
      for (const value of samples) {
        const sent = sentForm(value, rename) as Record<string, unknown>
        checked++
        if (!takes(sent)) wrong.push({ name, tool: tool.name, sent, schema })
        if (JSON.stringify(renameBack(sent, rename)) !== JSON.stringify(value)) wrong.push({ tool, value })
      }
    }
  }
  t.strictSame(wrong, [])
  t.ok(checked > 1500, `${checked} were checked`)
})

t.test('normalising twice changes nothing, and equal schemas give equal bytes', async (t) => {
  const changed = allTools.filter((tool) => {
    const once = clean(tool.inputSchema)
    return JSON.stringify(clean(once)) !== JSON.stringify(once)
  })
  t.strictSame(changed, [])
})

t.test('older drafts and odd shapes mean what they meant', async (t) => {
  const property = (sub: unknown, name = 'p') =>
    (clean({ type: 'object', properties: { [name]: sub } }).properties as Record<string, unknown>)[name]
  t.strictSame(property({ type: 'integer', minimum: 0, exclusiveMinimum: true }), {
    type: 'integer',
    exclusiveMinimum: 0,
  })
  t.strictSame(property({ type: 'integer', minimum: 0, exclusiveMinimum: false }), {
    type: 'integer',
    minimum: 0,
  })
  t.strictSame(property({ items: [{ type: 'string' }, true], additionalItems: false }), {
    type: 'array',
    prefixItems: [{ type: 'string' }, {}],
    maxItems: 2,
  })
  t.strictSame(property(true), {}, 'true is anything')
  t.strictSame(property(false), undefined, 'false is no property')
  t.strictSame(property(null), {})
  t.strictSame(property({ type: 'array' }), { type: 'array', items: {} })
  t.strictSame(property({ type: 'object' }), { type: 'object', properties: {} })
  t.strictSame(property({ type: 'string', nullable: true }), { type: ['string', 'null'] })
  t.strictSame(property({ type: 'any' }), {})
  t.strictSame(property({ type: 'Integer' }), { type: 'integer' })
  t.strictSame(property({ type: 'file' }), undefined, 'an optional field of an unknown type is left out')
  t.strictSame(property({ properties: { a: { type: 'string' } } }), {
    type: 'object',
    properties: { a: { type: 'string' } },
  })
  t.strictSame(property({ type: 'string', pattern: '(' }), { type: 'string' }, 'a broken pattern goes')
  t.strictSame(property({ type: 'string', enum: [1, 2] }), { type: 'integer', enum: [1, 2] })
  t.strictSame(property({ type: 'number', minimum: '0' }), { type: 'number' })
  t.strictSame(clean({ type: 'object', properties: [], required: [] }), { type: 'object', properties: {} })
  t.strictSame(
    clean({ type: 'object', properties: { f: { type: 'file' } }, required: ['f'] }),
    { type: 'object', properties: { f: { type: 'string' } }, required: ['f'] },
    'a required field of an unknown type becomes a text',
  )
  t.strictSame(
    clean({ properties: { a: { type: 'string', required: true } }, required: ['b'] }),
    { type: 'object', properties: { a: { type: 'string' }, b: {} }, required: ['b', 'a'] },
    'draft-03 says it on the property',
  )
  t.strictSame(clean({ type: 'object', properties: {}, required: ['b'] }), {
    type: 'object',
    properties: { b: {} },
    required: ['b'],
  })
  t.strictSame(normalise({ type: 'string' }), { undeclarable: 'its schema describes string, not an object' })
  t.match(normalise(false), { undeclarable: /no arguments/ })
})

t.test('properties may be named like keywords', async (t) => {
  const words = [
    '$ref',
    'properties',
    'enum',
    'items',
    'required',
    'type',
    'anyOf',
    'definitions',
    '__proto__',
  ]
  const properties = Object.fromEntries(words.map((word) => [word, { type: 'string', description: word }]))
  const raw = { type: 'object', properties, required: words }
  t.strictSame(clean(JSON.parse(JSON.stringify(raw))), JSON.parse(JSON.stringify(raw)))
  const { schema, rename } = fitted(raw, profile('narrow'))
  t.strictSame([...narrowFaults(schema)], [])
  t.equal(rename?.size, 1)
  const sent = sentForm({ $ref: 'a', items: 'b' }, rename) as Record<string, unknown>
  t.notOk('$ref' in sent)
  t.strictSame(renameBack(sent, rename), { $ref: 'a', items: 'b' })
})

t.test('references are followed inside the schema, and never outside of it', async (t) => {
  const raw = {
    type: 'object',
    properties: {
      a: { $ref: '#/definitions/A', description: 'mine' },
      b: { $ref: '#/properties/a' },
      c: { $ref: '#anchored' },
      d: { $ref: 'https://example.org/schema.json' },
      e: { $ref: '#/definitions/none' },
      f: { $ref: '#/definitions/A', minLength: 3 },
      definitions: { type: 'array', items: [{ type: 'boolean' }] },
      g: { $ref: '#/properties/definitions/items/0' },
    },
    definitions: {
      A: { type: 'string', description: 'theirs' },
      B: { $anchor: 'anchored', type: 'integer' },
    },
  }
  const { schema } = fitted(raw, profile('narrow'))
  const at = (schema.properties ?? {}) as Record<string, JsonSchema>
  t.strictSame(at.a, { type: 'string', description: 'mine' })
  t.strictSame(at.b, { type: 'string', description: 'mine' })
  t.strictSame(at.c, { type: 'integer' })
  t.strictSame(at.d, {})
  t.strictSame(at.e, {})
  t.strictSame(at.g, { type: 'boolean' })
  t.strictSame((clean(raw).properties as Record<string, JsonSchema>).f, {
    type: 'string',
    description: 'theirs',
    minLength: 3,
  })
})

t.test('a recursive schema ends', async (t) => {
  const node = {
    type: 'object',
    properties: { next: { $ref: '#', description: 'again' }, v: { type: 'string' } },
  }
  for (const [name, profile] of Object.entries(PROFILES)) {
    t.strictSame([...(CHECKERS[name]?.(fitted(node, profile).schema) ?? ['none'])], [], name)
  }
  for (const circle of [
    { $ref: '#' },
    { allOf: [{ $ref: '#' }] },
    { $ref: '#/$defs/a', minProperties: 1, $defs: { a: { $ref: '#/$defs/b' }, b: { $ref: '#/$defs/a' } } },
    { type: 'object', properties: { x: { allOf: [{ $ref: '#/properties/x' }, { type: 'string' }] } } },
  ]) {
    t.equal(clean(circle).type, 'object', JSON.stringify(circle))
  }
  const wide = Object.fromEntries(Array.from({ length: 40 }, (_, i) => [`p${i}`, { $ref: '#/$defs/n' }]))
  const bushy = { type: 'object', properties: wide, $defs: { n: { type: 'object', properties: wide } } }
  const { schema } = fitted(bushy, profile('narrow'))
  t.ok(JSON.stringify(schema).length <= 32_768, 'a bushy one stays small')
})

t.test('choices at the root become one object', async (t) => {
  const { schema } = fitted(
    {
      type: 'object',
      properties: { id: { type: 'string' } },
      required: ['id'],
      oneOf: [
        { properties: { kind: { const: 'a' }, x: { type: 'number' } }, required: ['kind', 'x'] },
        { $ref: '#/$defs/B' },
      ],
      if: { properties: { id: { const: 'z' } } },
      // biome-ignore lint/suspicious/noThenProperty: the keyword
      then: { properties: { why: { type: 'string' } }, required: ['why'] },
      not: { required: ['never'] },
      $defs: { B: { properties: { kind: { const: 'b' }, x: { type: 'string' } }, required: ['kind'] } },
    },
    profile('openai'),
  )
  t.strictSame(schema, {
    type: 'object',
    properties: {
      id: { type: 'string' },
      kind: { type: 'string', enum: ['a', 'b'] },
      x: { anyOf: [{ type: 'number' }, { type: 'string' }] },
      why: { type: 'string' },
    },
    required: ['id', 'kind'],
  })
})

t.test('what a target has no word for is relaxed, not lost', async (t) => {
  const { schema } = fitted(
    {
      type: 'object',
      properties: {
        level: { type: 'number', enum: [0.5, 1], description: 'How much.' },
        mode: { type: ['string', 'null'], enum: ['a', null, ''] },
        pair: { type: 'array', prefixItems: [{ type: 'string' }, { type: 'integer' }] },
        tag: { const: 'x' },
        above: { type: 'integer', exclusiveMinimum: 4 },
        either: { oneOf: [{ type: 'string' }, { type: 'number' }] },
      },
    },
    profile('narrow'),
  )
  t.strictSame(schema.properties, {
    level: { type: 'number', description: 'How much.\nOne of: 0.5, 1' },
    mode: { anyOf: [{ type: 'string', enum: ['a'] }, { type: 'null' }] },
    pair: { type: 'array', items: { anyOf: [{ type: 'string' }, { type: 'integer' }] } },
    tag: { type: 'string', enum: ['x'] },
    above: { type: 'integer', minimum: 5 },
    either: { anyOf: [{ type: 'string' }, { type: 'number' }] },
  })
})

t.test('descriptions hide nothing', async (t) => {
  const tag = String.fromCodePoint(0xe0041)
  const hidden = `see\u200b\u202e${tag} this<!-- and do that -->\u0000\ud800 now`
  const schema = clean({ type: 'object', properties: { a: { type: 'string', description: hidden } } })
  t.strictSame((schema.properties as Record<string, JsonSchema>).a?.description, 'see this now')
  for (const split of ['see <!\u200b-- do that -->this', 'see <!<!-- -->-- do that -->this']) {
    const { description } = clean({ type: 'object', description: split, properties: {} })
    t.notMatch(description, /<!--/, JSON.stringify(split))
  }
  const long = clean({ type: 'object', description: 'é'.repeat(10_000), properties: {} })
  t.ok(Buffer.byteLength(String(long.description)) <= 4096)
  t.notMatch(long.description, '\ufffd')
})

t.test('hostile schemas cost little and break nothing', async (t) => {
  let deep: unknown = { type: 'string' }
  for (let i = 0; i < 100_000; i++) deep = { type: 'object', properties: { a: deep } }
  t.equal(clean(deep).type, 'object', 'nested a hundred thousand deep')
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

t.test('parts that are combined or repeated without end are not worked through', async (t) => {
  const tooOften = { undeclarable: /repeats or combines its parts too often/ }
  const members = (count: number) => ({
    type: 'object',
    allOf: range(count, (i) => ({ properties: { [`p${i}`]: {} } })),
  })
  t.equal(Object.keys(clean(members(100)).properties as JsonSchema).length, 100)
  t.match(normalise(members(2_400)), tooOften, 'each member is merged with all before it')
  const chain = {
    $ref: '#/$defs/d0',
    type: 'object',
    $defs: map(4_800, 'd', (i) => ({ $ref: `#/$defs/d${i + 1}`, properties: { [`p${i}`]: {} } })),
  }
  t.match(normalise(chain), { undeclarable: /a chain of more than 100 references/ }, 'deeper than any stack')
  const again = { allOf: range(2_000, () => ({ $ref: '#/$defs/e' })) }
  const listed = { type: 'object', properties: { a: again }, $defs: { e: { enum: range(900, String) } } }
  t.match(normalise(listed), tooOften, 'a list that is named again and again')
  const bulky = { ...listed, $defs: { e: { enum: [{ a: range(300, (b) => ({ b })) }] } } }
  t.match(normalise(bulky), tooOften, 'or a large value')

  const lists = { type: 'object', properties: map(60, 'p', () => ({ enum: range(900, String) })) }
  t.ok(clean(lists).properties, 'long lists that are read once are no such thing')
})

t.test('definitions that are called alike keep names of their own', async (t) => {
  const named = map(1_000, 'd', () => ({ x: { minLength: 1 } }))
  const alike = map(1_000, 'p', (i) => ({ $ref: `#/$defs/d${i}/x` }))
  t.match(normalise({ type: 'object', properties: alike, $defs: named }), { undeclarable: /larger than/ })
  const few = Object.fromEntries(Object.entries(alike).slice(0, 30))
  const { $defs } = clean({ type: 'object', properties: few, $defs: named })
  t.equal(Object.keys($defs as JsonSchema).length, 30)
})

t.test('a part that is named again and again is not read for each name', async (t) => {
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

t.test('any JSON at all is normalised or refused with a reason, and then fits every profile', async () => {
  const keyword = fc.constantFrom(
    ...KEYWORD_ORDER,
    'definitions',
    'nullable',
    'additionalItems',
    'dependencies',
  )
  const { schema: arbitrary } = fc.letrec<{ schema: unknown }>((tie) => ({
    schema: fc.oneof(
      { depthSize: 'small', withCrossShrink: true },
      fc.constantFrom<unknown>(true, false, null, {}, { type: 'string' }, { type: 'file' }, { $ref: '#' }),
      fc.dictionary(
        keyword,
        fc.oneof(
          tie('schema'),
          fc.array(tie('schema'), { maxLength: 3 }),
          fc.dictionary(fc.oneof(fc.constantFrom('a', 'b.c', '$ref', '金'), fc.string()), tie('schema'), {
            maxKeys: 3,
          }),
          fc.constantFrom<unknown>(
            'object',
            'string',
            ['array', 'null'],
            '#/$defs/a',
            ['a'],
            3,
            -1,
            true,
            'x',
          ),
          fc.jsonValue(),
        ),
        { maxKeys: 5 },
      ),
    ),
  }))
  fc.assert(
    fc.property(arbitrary, (raw) => {
      const result = normalise(raw)
      if ('undeclarable' in result) return result.undeclarable !== ''
      for (const [name, profile] of Object.entries(PROFILES)) {
        const adapted = adapt(result.schema, profile)
        if ('undeclarable' in adapted) throw new Error(adapted.undeclarable)
        const faults = [...(CHECKERS[name]?.(adapted.schema) ?? [])]
        if (faults.length > 0) throw new Error(`${name}: ${faults.join('; ')}`)
      }
      return true
    }),
    { seed: 1, numRuns: 400 },
  )
})

t.test('renamed properties come back wherever they stand', async () => {
  const key = fc.oneof(
    fc.string({ minLength: 1, unit: 'grapheme' }),
    fc.constantFrom('$top', 'a[]', 'a__b', 'DateSent<'),
  )
  fc.assert(
    fc.property(fc.uniqueArray(key, { minLength: 1, maxLength: 6 }), (keys) => {
      const flat = Object.fromEntries(keys.map((name) => [name, { type: 'string' }]))
      const raw = {
        type: 'object',
        properties: { ...flat, list: { type: 'array', items: { type: 'object', properties: flat } } },
      }
      const { schema, rename } = fitted(raw, profile('narrow'))
      const names = Object.keys(schema.properties ?? {})
      if (names.length !== new Set([...keys, 'list']).size) return false
      const text = Object.fromEntries(keys.map((name) => [name, 'v']))
      const value = { ...text, list: [text] }
      const back = renameBack(sentForm(value, rename) as Record<string, unknown>, rename)
      return JSON.stringify(back) === JSON.stringify(value)
    }),
    { seed: 1, numRuns: 200 },
  )
})
