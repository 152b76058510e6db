/** Schemas of any draft keep their meaning, and fit every provider. */
import fc from 'fast-check'
import t from 'tap'
import type { JsonSchema } from '../../../src/provider.ts'
import { adapt, ownNames } from '../../../src/tools/schema/adapt.ts'
import { KEYWORD_ORDER } from '../../../src/tools/schema/keywords.ts'
import { normalise } from '../../../src/tools/schema/normalise.ts'
import { EMPTY } from '../../patterns.ts'
import { clean, faultsIn, fitted, narrowFaults, PROFILES, profile, sentForm } from './targets.ts'

const free = { type: 'object', properties: {} }
const property = (sub: unknown) =>
  (clean({ type: 'object', properties: { p: sub } }).properties as Record<string, unknown>).p

t.test('older drafts and odd shapes keep their meaning', async (t) => {
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
  t.strictSame(property(true), {}, 'true allows anything')
  t.strictSame(property(false), undefined, 'false removes the property')
  t.strictSame(property(null), {})
  t.strictSame(property({ type: 'array' }), { type: 'array', items: {} })
  t.strictSame(property({ type: 'object' }), { type: 'object', properties: {} })
  t.strictSame(property({ type: 'string', nullable: true }), { type: ['string', 'null'] })
  t.strictSame(property({ type: 'any' }), {})
  t.strictSame(property({ type: 'Integer' }), { type: 'integer' })
  t.strictSame(property({ type: 'file' }), undefined, 'an optional field of an unknown type is left out')
  t.strictSame(property({ type: 'enum', enum: ['a', 1] }), { type: ['string', 'integer'], enum: ['a', 1] })
  t.strictSame(property({ type: 'uuid', const: 'x' }), { type: 'string', const: 'x' })
  t.strictSame(property({ type: 'enum', enum: [] }), undefined)
  t.strictSame(property({ properties: { a: { type: 'string' } } }), {
    type: 'object',
    properties: { a: { type: 'string' } },
  })
  const anyName = { '^(.*)$': { type: 'string' } }
  t.strictSame(property({ type: 'object', patternProperties: anyName, additionalProperties: false }), {
    type: 'object',
    properties: {},
    additionalProperties: { type: 'string' },
  })
  t.match(
    property({ type: 'object', properties: { a: { type: 'string' } }, patternProperties: anyName }),
    { patternProperties: anyName },
    'named properties have to fit the pattern’s schema, too',
  )
  t.strictSame(property({ type: 'string', pattern: '(' }), { type: 'string' }, 'a broken pattern is left out')
  t.strictSame(property({ type: 'string', enum: [1, 2] }), { type: 'integer', enum: [1, 2] })
  t.strictSame(property({ type: 'number', minimum: '0' }), { type: 'number' })
  t.strictSame(
    property({ type: 'string', default: null }),
    { type: 'string' },
    'a default that says "absent" is left out',
  )
  t.strictSame(property({ type: ['string', 'null'], default: null }), {
    type: ['string', 'null'],
    default: null,
  })
  t.strictSame(clean({ type: 'object', properties: [], required: [] }), { type: 'object', properties: {} })
  t.strictSame(
    clean({ type: 'object', properties: { f: { type: 'file' } }, required: ['f'] }),
    { type: 'object', properties: { f: { type: 'string' } }, required: ['f'] },
    'a required field of an unknown type becomes a text',
  )
  t.strictSame(
    clean({ properties: { a: { type: 'string', required: true } }, required: ['b'] }),
    { type: 'object', properties: { a: { type: 'string' }, b: {} }, required: ['b', 'a'] },
    'draft-03 says on the property that it is required',
  )
  const record = { type: 'object', additionalProperties: { type: 'number' }, required: ['a'] }
  t.strictSame(
    property(record),
    { ...record, properties: { a: { type: 'number' } } },
    'a required name is of the type of all others, as in a record of zod',
  )
  const names = Array.from({ length: 50 }, (_, i) => `a${i}`)
  t.match(property({ ...record, required: names }), { properties: { a49: { type: 'number' } } })
  const long = { type: 'object', properties: Object.fromEntries(names.map((name) => [name, record])) }
  for (const additionalProperties of [long, { $ref: '#/$defs/Long' }]) {
    const x = { type: 'object', additionalProperties, required: names }
    const { properties } = clean({ type: 'object', properties: { x }, $defs: { Long: long } })
    t.match(
      properties,
      { x: { properties: { a49: EMPTY } } },
      'copies would take the room of all other parts',
    )
  }
  t.strictSame(property({ ...record, patternProperties: { '^b': { type: 'string' } } }), {
    ...record,
    properties: { a: {} },
    patternProperties: { '^b': { type: 'string' } },
  })
  t.strictSame(clean({ type: 'object', properties: {}, required: ['b'] }), {
    type: 'object',
    properties: { b: {} },
    required: ['b'],
  })
  t.strictSame(normalise({ type: 'string' }), { undeclarable: 'its schema describes string, not an object' })
  t.match(normalise(false), { undeclarable: /no arguments/ })
})

t.test('each form of an older draft is read as its newer form', async (t) => {
  const [text, number] = [{ type: 'string' }, { type: 'number' }]
  const list = { type: 'array', items: {} }
  for (const [raw, read] of [
    [
      { type: 'number', maximum: 9, exclusiveMaximum: true },
      { type: 'number', exclusiveMaximum: 9 },
    ],
    [
      { items: [text], additionalItems: number },
      { type: 'array', prefixItems: [text], items: number },
    ],
    [
      { type: 'string', enum: ['a'], nullable: true },
      { type: ['string', 'null'], enum: ['a', null] },
    ],
    [
      { description: 'x', allOf: [text, { minLength: 1 }], nullable: true },
      { description: 'x', anyOf: [{ type: 'string', minLength: 1 }, { type: 'null' }] },
    ],
    [{ anyOf: [text, { type: 'null' }], nullable: true }, { anyOf: [text, { type: 'null' }] }],
    [
      { type: 'string', const: 'a', nullable: true },
      { anyOf: [{ type: 'string', const: 'a' }, { type: 'null' }] },
    ],
    [
      { ...free, dependencies: { a: ['b'], b: { required: ['c'] }, c: 5, d: [] } },
      { ...free, dependentRequired: { a: ['b'] }, dependentSchemas: { b: { required: ['c'] } } },
    ],
    [
      { contains: text, minContains: 0, minItems: 1 },
      { ...list, minItems: 1 },
    ],
    [
      { type: 'array', contains: text },
      { ...list, contains: text },
    ],
    [
      { type: 'object', properties: [], required: ['a', 5] },
      { ...free, properties: { a: {} }, required: ['a'] },
    ],
    [{ type: ['number', 'integer', 'text'] }, { type: ['number', 'string'] }],
    [{ type: ['file', 'str'] }, text],
    [{ pattern: 'a' }, { type: 'string', pattern: 'a' }],
    [{ maxItems: 1 }, { ...list, maxItems: 1 }],
    [{ exclusiveMaximum: 3 }, { type: 'number', exclusiveMaximum: 3 }],
    [{ additionalProperties: false }, { ...free, additionalProperties: false }],
    [{ patternProperties: { '^a': text } }, { ...free, patternProperties: { '^a': text } }],
    [
      { type: 'integer', enum: [1, 2.5, 'x'] },
      { type: 'integer', enum: [1] },
    ],
    [{ enum: [1, null, 2.5] }, { type: ['null', 'number'], enum: [1, null, 2.5] }],
    [{ type: 'integer', default: '3' }, { type: 'integer' }],
    [
      { type: 'number', default: 3 },
      { type: 'number', default: 3 },
    ],
  ]) {
    t.strictSame(property(raw), read, JSON.stringify(raw))
  }
  const words = {
    string: ['str', 'text', 'date', 'datetime'],
    integer: ['int', 'long'],
    number: ['float', 'double', 'decimal'],
    boolean: ['bool'],
    object: ['dict', 'map'],
    array: ['list', 'tuple'],
    null: ['none'],
  }
  for (const [type, aliases] of Object.entries(words))
    for (const alias of aliases) t.match(property({ type: alias }), { type }, alias)
})

t.test('a reference finds its definition by path, id or anchor of any draft', async (t) => {
  const target = { type: 'integer', $defs: { m: { type: 'null' } } }
  for (const [reference, named, type] of [
    [{ $ref: 'x.json' }, { $id: 'x.json' }, 'integer'],
    [{ $ref: 'x.json#' }, { $id: 'x.json#' }, 'integer'],
    [{ $ref: 'x.json#/$defs/m' }, { $id: 'x.json' }, 'null'],
    [{ $ref: '#foo' }, { id: '#foo' }, 'integer'],
    [{ $dynamicRef: '#foo' }, { $dynamicAnchor: 'foo' }, 'integer'],
    [{ $ref: '#/$defs/a%20~1b' }, {}, 'integer'],
    [{ $recursiveRef: '#' }, {}, 'object'],
  ] as const) {
    const raw = { type: 'object', properties: { p: reference }, $defs: { 'a /b': { ...target, ...named } } }
    const { $defs } = clean(raw)
    t.match(Object.values($defs as object), [{ type }], JSON.stringify(reference))
  }
})

t.test('several schemas for one value become what all of them allow', async (t) => {
  const [text, number, whole] = [{ type: 'string' }, { type: 'number' }, { type: 'integer' }]
  const orNull = (sub: unknown) => [sub, { type: 'null' }]
  const open = (additionalProperties: unknown) => ({ ...free, additionalProperties })
  const named = (pattern: object) => ({
    type: 'object',
    properties: {},
    patternProperties: { '^a': pattern },
  })
  for (const [a, b, both] of [
    [number, whole, whole],
    [whole, number, whole],
    [{ type: ['string', 'null'] }, text, text],
    [text, number, text],
    [{ enum: [1, 2, 3] }, { enum: [2, 3, 4] }, { type: 'integer', enum: [2, 3] }],
    [{ enum: [5, { b: 1, c: 2 }] }, { enum: [{ c: 2, b: 1 }] }, { ...free, enum: [{ b: 1, c: 2 }] }],
    [{ enum: [1] }, { enum: [2] }, { type: 'integer', enum: [1] }],
    [{ type: ['string', 'null'] }, { enum: ['a', 5, null] }, { type: ['string', 'null'], enum: ['a', null] }],
    [text, { enum: ['a', null], default: null }, { type: 'string', enum: ['a'] }],
    [text, { const: 5 }, { type: 'integer', const: 5 }],
    [
      { type: 'object', properties: { a: text } },
      { properties: { a: { enum: ['a', 5] } } },
      { type: 'object', properties: { a: { type: 'string', enum: ['a'] } } },
    ],
    [{ const: 'a' }, { const: 'b' }, { type: 'string', const: 'a' }],
    [
      { type: 'integer', minimum: 1, maximum: 5 },
      { minimum: 3, maximum: 9 },
      { type: 'integer', minimum: 3, maximum: 5 },
    ],
    [
      { exclusiveMinimum: 3, exclusiveMaximum: 9 },
      { exclusiveMinimum: 1, exclusiveMaximum: 5 },
      { type: 'number', exclusiveMinimum: 3, exclusiveMaximum: 5 },
    ],
    [
      { minLength: 3, maxLength: 5 },
      { minLength: 1, maxLength: 9 },
      { type: 'string', minLength: 3, maxLength: 5 },
    ],
    [
      { items: { type: 'number', minimum: 1 }, minItems: 2, maxItems: 3 },
      { items: { type: 'integer', maximum: 5 }, minItems: 1, maxItems: 4 },
      { type: 'array', items: { type: 'integer', minimum: 1, maximum: 5 }, minItems: 2, maxItems: 3 },
    ],
    [{ prefixItems: [text] }, { prefixItems: [number] }, { type: 'array', prefixItems: [text] }],
    [
      {
        type: 'object',
        properties: { a: text, b: { minLength: 1 } },
        required: ['a'],
        minProperties: 2,
        maxProperties: 3,
      },
      { properties: { b: text, c: {} }, required: ['b', 'a'] },
      {
        type: 'object',
        properties: { a: text, b: { type: 'string', minLength: 1 }, c: {} },
        required: ['a', 'b'],
        minProperties: 2,
        maxProperties: 3,
      },
    ],
    [
      { type: 'object', minProperties: 2, maxProperties: 3 },
      { type: 'object', minProperties: 1, maxProperties: 4 },
      { ...free, minProperties: 2, maxProperties: 3 },
    ],
    [open(false), open(true), open(false)],
    [open(true), open(false), open(false)],
    [open(text), open(true), open(text)],
    [open({}), open(text), open(text)],
    [open(text), open({ minLength: 1 }), open({ type: 'string', minLength: 1 })],
    [named(text), named({ minLength: 1 }), named({ type: 'string', minLength: 1 })],
    [{ anyOf: orNull(text) }, { anyOf: orNull(number) }, { anyOf: orNull(text) }],
    [{ oneOf: orNull(text) }, { oneOf: orNull(number) }, { oneOf: orNull(text) }],
    [text, false, undefined],
  ]) {
    const found = property({ allOf: [a, b] })
    t.strictSame(found, both, JSON.stringify([a, b]))
  }
  t.match(normalise({ type: 'object', allOf: [false] }), { undeclarable: /no arguments/ })
})

t.test('a property that nothing fits is removed and no longer required', async (t) => {
  const raw = { type: 'object', properties: { a: false, b: { type: 'string' } }, required: ['a', 'b'] }
  t.strictSame(clean(raw), { type: 'object', properties: { b: { type: 'string' } }, required: ['b'] })
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
  t.strictSame(ownNames(sent, rename), { $ref: 'a', items: 'b' })
})

t.test('references are followed inside the schema, and never outside', async (t) => {
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

t.test('a reference keeps the keywords beside it, and its definition gets a plain name', async (t) => {
  const $defs = { 'List<A>': { type: 'string', description: 'theirs' }, '<>': { type: 'integer' } }
  const properties = {
    // Pydantic writes references in this way.
    a: { allOf: [{ $ref: '#/$defs/List<A>' }], description: 'mine' },
    b: { $ref: '#/$defs/<>' },
    c: { allOf: [{ $ref: '#/$defs/<>' }, { minimum: 1 }], description: 'mine' },
  }
  t.strictSame(clean({ type: 'object', properties, $defs }), {
    type: 'object',
    properties: {
      a: { $ref: '#/$defs/ListA', description: 'mine' },
      b: { $ref: '#/$defs/definition' },
      c: { type: 'integer', description: 'mine', minimum: 1 },
    },
    $defs: { ListA: $defs['List<A>'], definition: { type: 'integer' } },
  })
  const said = { description: 'mine', allOf: [{ type: 'string', description: 'of a part' }] }
  t.strictSame(property(said), { type: 'string', description: 'mine' })
})

t.test('a constant is the only value for every provider, in the keyword that it reads', async (t) => {
  const kind = { enum: ['a', 'b'] }
  for (const sub of [{ const: 'a' }, { allOf: [kind, { const: 'a' }] }]) {
    for (const [name, profile] of Object.entries(PROFILES)) {
      const { schema } = fitted({ type: 'object', properties: { p: sub } }, profile)
      const { p } = schema.properties as Record<string, JsonSchema>
      t.strictSame(p?.const === undefined ? p?.enum : [p.const], ['a'], name)
    }
  }
})

t.test('a title goes to the providers that read it as one, and its words to Gemini', async (t) => {
  // As pydantic writes it, with a property of that name.
  const page = {
    title: 'Page',
    type: 'object',
    properties: {
      title: { title: 'Title', type: 'string' },
      size: { title: 'Size in pixels', type: 'integer' },
    },
  }
  const raw = {
    title: 'addArguments',
    type: 'object',
    properties: {
      page: { $ref: '#/$defs/Page' },
      old: { title: 'Old name', description: 'Said', type: 'string' },
    },
    $defs: { Page: page },
  }
  t.match(fitted(raw, profile('openai')).schema, { title: 'addArguments', $defs: { Page: page } })
  t.match(fitted(raw, profile('anthropic')).schema, { title: 'addArguments', $defs: { Page: page } })
  t.strictSame(fitted(raw, profile('gemini')).schema, {
    type: 'object',
    properties: {
      page: {
        type: 'object',
        properties: { title: { type: 'string' }, size: { type: 'integer', description: 'Size in pixels' } },
      },
      old: { type: 'string', description: 'Said' },
    },
  })
})

t.test('Claude is told all types of an argument that may be anything', async (t) => {
  const raw = {
    type: 'object',
    properties: {
      any: true,
      said: { description: 'Any JSON', default: null },
      open: { anyOf: [{}, { type: 'null' }] },
      // As pydantic writes a JsonValue.
      json: { $ref: '#/$defs/JsonValue' },
      maybe: { anyOf: [{ $ref: '#/$defs/JsonValue' }, { type: 'null' }] },
      text: { type: 'string' },
      one: { const: 1 },
      deep: { type: 'object', properties: { any: {} } },
    },
    $defs: { JsonValue: {} },
  }
  const { properties } = fitted(raw, profile('anthropic')).schema as {
    properties: Record<string, JsonSchema>
  }
  const { any, said, open, json, maybe, ...typed } = properties
  const types = ['string', 'number', 'boolean', 'object', 'array', 'null']
  for (const sub of [any, said, open, json, maybe]) {
    t.strictSame(
      ((sub?.anyOf ?? []) as JsonSchema[]).map(({ type }) => type),
      types,
    )
  }
  t.match(said, { description: 'Any JSON', default: null })
  t.strictSame(typed, {
    text: { type: 'string' },
    one: { type: 'integer', const: 1 },
    deep: { type: 'object', properties: { any: {} } },
  })
  t.match(fitted(raw, profile('openai')).schema.properties, { any: {} })
})

t.test('Gemini is told that an object without named properties may have any', async (t) => {
  const free = { type: 'object' }
  const map = { type: 'object', additionalProperties: { type: 'string' } }
  const none = { type: 'object', additionalProperties: false }
  const raw = {
    type: 'object',
    properties: { free, map, none, list: { type: 'array', items: { type: ['object', 'null'] } } },
  }
  const open = { type: 'object', properties: {}, additionalProperties: true }
  t.strictSame(fitted(raw, profile('gemini')).schema.properties, {
    free: open,
    map: { ...map, properties: {} },
    none: { ...none, properties: {} },
    list: { type: 'array', items: { ...open, type: ['object', 'null'] } },
  })
  t.strictSame(fitted(free, profile('gemini')).schema, { type: 'object', properties: {} }, 'no arguments')
  t.match(fitted(raw, profile('openai')).schema.properties, { free: { type: 'object', properties: {} } })
})

t.test('every provider can take a recursive schema', async (t) => {
  const node = {
    type: 'object',
    properties: { next: { $ref: '#', description: 'again' }, v: { type: 'string' } },
  }
  for (const [name, profile] of Object.entries(PROFILES)) {
    t.strictSame(faultsIn(fitted(node, profile).schema, name), [], name)
  }
  for (const circle of [
    { $ref: '#' },
    { allOf: [{ $ref: '#' }] },
    { $ref: '#/$defs/a', minProperties: 1, $defs: { a: { $ref: '#/$defs/b' }, b: { $ref: '#/$defs/a' } } },
    { type: 'object', properties: { x: { allOf: [{ $ref: '#/properties/x' }, { type: 'string' }] } } },
  ]) {
    t.equal(clean(circle).type, 'object', JSON.stringify(circle))
  }
  const itself = { type: 'object', properties: { a: { $ref: '#/properties/a' } } }
  const parts = { a: { $ref: '#/$defs/b' }, b: { $ref: '#/$defs/a' } }
  const each = { type: 'object', properties: parts, $defs: parts }
  t.strictSame(clean(itself).$defs, { a: {} }, 'a reference to itself says nothing')
  t.strictSame(
    clean(each).$defs,
    { a: { $ref: '#/$defs/b' }, b: {} },
    'two references to each other say nothing',
  )
  const wide = Object.fromEntries(Array.from({ length: 40 }, (_, i) => [`p${i}`, { $ref: '#/$defs/n' }]))
  const bushy = { type: 'object', properties: wide, $defs: { n: { type: 'object', properties: wide } } }
  const { schema } = fitted(bushy, profile('narrow'))
  t.ok(JSON.stringify(schema).length <= 32_768, 'a bushy recursive schema stays small')
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

t.test('conditions side by side name the properties that they lead to, and require none', async (t) => {
  const when = (kind: string, name: string, branch: 'then' | 'else') => ({
    if: { properties: { kind: { const: kind } } },
    [branch]: { properties: { [name]: { type: 'string' }, kind: { type: 'null' } }, required: [name] },
  })
  const node = {
    type: 'object',
    properties: { kind: { enum: ['a', 'b', 'c'] } },
    required: ['kind'],
    ...when('c', 'zip', 'then'),
    allOf: [when('a', 'path', 'then'), when('b', 'url', 'else')],
  }
  const text = { type: 'string' }
  const kind = { type: 'string', enum: ['a', 'b', 'c'] }
  const named = { type: 'object', properties: { kind, zip: text, path: text, url: text }, required: ['kind'] }
  for (const [name, profile] of Object.entries(PROFILES)) {
    const { schema } = fitted({ type: 'object', properties: { at: node } }, profile)
    t.strictSame(fitted(node, profile).schema, named, name)
    t.strictSame(schema.properties, { at: named }, `${name}, below the root`)
  }
  const given = (name: string, branch: 'then' | 'else', sub: object) => ({
    if: { required: [name] },
    [branch]: sub,
  })
  const leading = {
    $defs: {
      path: { type: 'object', properties: { path: text }, required: ['path'] },
      where: { anyOf: [{ properties: { url: text } }, { $ref: '#/$defs/where' }, { $ref: '#/$defs/path' }] },
    },
    type: 'object',
    allOf: [
      given('a', 'then', { $ref: '#/$defs/path' }),
      given('b', 'then', { $ref: '#/$defs/where' }),
      given('c', 'else', { oneOf: [{ properties: { zip: text } }, { required: ['url'] }] }),
    ],
  }
  const found = { type: 'object', properties: { path: text, url: text, zip: text } }
  t.strictSame(clean(leading), found, 'behind references and choices, too')
  const bare = {
    type: 'string',
    allOf: [
      { if: {}, else: { minLength: 1 } },
      { if: {}, else: { maxLength: 9 } },
    ],
  }
  t.strictSame(clean({ type: 'object', properties: { bare } }).properties, { bare: text })
})

t.test('of choices side by side the first stays, and the others only name their properties', async (t) => {
  const [text, number] = [{ type: 'string' }, { type: 'number' }]
  const choice = (keyword: string, ...names: string[]) => ({
    [keyword]: names.map((name) => ({ properties: { [name]: text }, required: [name] })),
  })
  const own = { type: 'object', properties: { a: number }, required: ['a'] }
  for (const keyword of ['anyOf', 'oneOf']) {
    const [first, second] = [choice(keyword, 'b', 'c'), choice(keyword, 'd', 'a')]
    for (const raw of [
      { ...own, allOf: [first, second] },
      { ...own, ...first, allOf: [second] },
    ]) {
      t.match(clean(raw), { properties: { a: number, d: text }, required: ['a'] }, keyword)
      const { properties, required } = fitted(raw, profile('openai')).schema
      t.strictSame([properties, required], [{ a: number, d: text, b: text, c: text }, ['a']], keyword)
    }
  }
})

t.test(
  'a choice at the root is joined with the choices inside it, and the root’s own keywords win',
  async (t) => {
    const { schema } = fitted(
      {
        type: 'object',
        properties: { id: { description: 'mine' }, kind: { type: 'string' } },
        anyOf: [
          {
            oneOf: [
              { properties: { id: { type: 'integer', description: 'theirs' }, kind: { const: 5 } } },
              { $ref: '#/$defs/B' },
            ],
          },
          { anyOf: [{ properties: { z: {} } }] },
          { type: 'string' },
        ],
        else: { properties: { e: {} } },
        dependentSchemas: { id: { properties: { q: {} }, required: ['q'] } },
        $defs: { B: { properties: { y: {} } } },
      },
      profile('openai'),
    )
    const properties = { id: { type: 'integer', description: 'mine' }, kind: { type: 'string' } }
    t.strictSame(schema, { type: 'object', properties: { ...properties, y: {}, z: {}, e: {}, q: {} } })
  },
)

t.test('a reference that may have no siblings is written out for one level', async (t) => {
  const node = { type: 'object', properties: { n: { $ref: '#/$defs/N', description: 'next' } } }
  const raw = {
    type: 'object',
    properties: {
      a: { $ref: '#/$defs/N', description: 'mine' },
      b: { $ref: '#/$defs/M', description: 'its' },
    },
    $defs: { N: node, M: { $ref: '#/$defs/N' } },
  }
  const inner = { type: 'object', properties: { n: { $ref: '#/$defs/N' } } }
  t.strictSame(fitted(raw, profile('openai')).schema, {
    type: 'object',
    properties: { a: { ...inner, description: 'mine' }, b: { $ref: '#/$defs/N' } },
    $defs: { N: { type: 'object', properties: { n: { ...inner, description: 'next' } } } },
  })
})

t.test('a keyword that a target lacks is relaxed, not lost', async (t) => {
  const { schema } = fitted(
    {
      type: 'object',
      properties: {
        pair: { type: 'array', prefixItems: [{ type: 'string' }, { type: 'integer' }] },
        tag: { const: 'x' },
        above: { type: 'integer', exclusiveMinimum: 4 },
        beyond: { type: 'integer', exclusiveMinimum: 0.5, exclusiveMaximum: 3.5 },
        either: { oneOf: [{ type: 'string' }, { type: 'number' }] },
        both: { type: 'array', prefixItems: [{ type: 'string' }], items: { type: 'integer' } },
        any: { type: 'array', prefixItems: [{ type: 'string' }, {}] },
        same: { type: 'array', prefixItems: [{ type: 'string' }, { type: 'string' }] },
        below: { type: 'integer', exclusiveMaximum: 4 },
        between: { type: 'number', exclusiveMinimum: 1, exclusiveMaximum: 4 },
        within: { type: 'number', minimum: 0, exclusiveMinimum: 1, maximum: 9, exclusiveMaximum: 4 },
        inside: { type: 'integer', minimum: 3, exclusiveMinimum: 1, maximum: 3, exclusiveMaximum: 9 },
      },
    },
    profile('narrow'),
  )
  t.strictSame(schema.properties, {
    pair: { type: 'array', items: { anyOf: [{ type: 'string' }, { type: 'integer' }] } },
    tag: { type: 'string', enum: ['x'] },
    above: { type: 'integer', minimum: 5 },
    beyond: { type: 'integer', minimum: 1, maximum: 3 },
    either: { anyOf: [{ type: 'string' }, { type: 'number' }] },
    both: { type: 'array', items: { anyOf: [{ type: 'string' }, { type: 'integer' }] } },
    any: { type: 'array', items: {} },
    same: { type: 'array', items: { type: 'string' } },
    below: { type: 'integer', maximum: 3 },
    between: { type: 'number', minimum: 1, maximum: 4 },
    within: { type: 'number', minimum: 1, maximum: 4 },
    inside: { type: 'integer', minimum: 3, maximum: 3 },
  })
  const either = { oneOf: [{ type: 'string' }, { type: 'number' }] }
  t.strictSame(
    fitted({ type: 'object', properties: { either } }, profile('anthropic')).schema.properties,
    { either },
    'a keyword that the target has stays',
  )
})

t.test('a test of which a target reads no keyword is left out', async (t) => {
  const [a, b] = [{ type: 'string' }, { type: 'string' }]
  const both = { required: ['a', 'b'] }
  const none = { anyOf: [{ required: ['a'] }, { required: ['b'] }] }
  const then = { type: 'object', properties: { b }, required: ['b'] }
  const never = { not: {} }
  const nodes = {
    both: { type: 'object', properties: { a, b }, not: both },
    none: { type: 'object', properties: { a, b }, not: none },
    given: { type: 'object', properties: { a, b }, if: both, then },
  }
  const plain = { type: 'object', properties: { a, b } }
  for (const name of ['openai', 'anthropic']) {
    const all = { type: 'object', properties: { ...nodes, never } }
    const { schema } = fitted({ type: 'object', properties: { all } }, profile(name))
    const left = { both: plain, none: plain, given: { ...plain, then }, never }
    t.strictSame(schema.properties, { all: { type: 'object', properties: left } }, name)
  }
})

t.test('a test that loses a part for a target is left out, and a whole test stays', async (t) => {
  const unread = { type: 'string', pattern: '(?=b)' }
  const a = { type: 'object', properties: { a: unread }, required: ['a'] }
  const pair = { type: 'array', prefixItems: [{ type: 'string' }, { type: 'number' }] }
  const lost = [unread, a, pair, { anyOf: [unread, { type: 'null' }] }, { type: 'string', not: unread }]
  for (const test of lost) {
    const { schema } = fitted({ type: 'object', properties: { a: { not: test } } }, profile('openai'))
    t.strictSame(schema.properties, { a: {} }, JSON.stringify(test))
  }
  const then = { type: 'object', properties: { b: {} }, required: ['b'] }
  const given = { type: 'object', properties: { a: {}, b: {} }, if: a, then }
  const { properties } = fitted({ type: 'object', properties: { given } }, profile('openai')).schema
  t.notHas(properties, { given: { if: {} } })
  const whole = { type: 'object', properties: { 'a b': { const: 'x' } }, required: ['a b'] }
  const kept = { type: 'object', properties: { at: { not: whole, if: whole, then } } }
  for (const name of ['openai', 'anthropic']) {
    const { at } = fitted(kept, profile(name)).schema.properties as Record<string, object>
    t.hasProps(at ?? {}, ['not', 'if'], name)
  }
})

t.test('a test with a part that was relaxed anywhere is left out', async (t) => {
  const unread = { type: 'string', pattern: '(?=b)' }
  const unknown = { type: 'object', unevaluatedProperties: false }
  const lost = (sub: object, name: string, definition: object = {}) => {
    const at = { type: 'object', properties: { p: sub } }
    const { schema } = fitted({ type: 'object', properties: { at }, $defs: { D: definition } }, profile(name))
    const properties = schema.properties as Record<string, { properties: Record<string, JsonSchema> }>
    return properties.at?.properties.p
  }
  t.strictSame(Object.keys(lost({ oneOf: [unread, { type: 'string' }] }, 'openai') ?? {}), ['anyOf'])
  t.strictSame(lost({ not: { $ref: '#/$defs/D' } }, 'openai', unread), {})
  t.strictSame(lost({ not: { $ref: '#/$defs/D' } }, 'anthropic', unread), { not: { $ref: '#/$defs/D' } })
  t.strictSame(lost({ not: unknown }, 'anthropic'), {})
  t.strictSame(lost({ not: { $ref: '#/$defs/D' } }, 'anthropic', unknown), {})
  const required = { type: 'object', required: ['b'] }
  t.strictSame(lost({ not: { ...required, additionalProperties: false } }, 'anthropic'), {})
  for (const additionalProperties of [{ type: 'number' }, true])
    t.hasProps(lost({ not: { ...required, additionalProperties } }, 'anthropic') ?? {}, ['not'])
  const choice = (key: string) => ({
    anyOf: [{ properties: { [key]: {} }, required: [key] }, { required: ['z'] }],
  })
  const both = lost({ type: 'object', $ref: '#/$defs/D', ...choice('a') }, 'anthropic', choice('b'))
  t.match(both, { properties: { b: {} } }, 'a choice behind a reference names its properties')
})

t.test('a pattern that a target cannot read is left out', async (t) => {
  const kept = ['^[\\w.-]+$', '^(?:a|b){2}\\/\\u00e9$', '\\S']
  const unread = ['^(?!__)a', '(?=b)', '(?<!a)b', '^[^\\p{Cc}]+$', '(?<y>\\d)', '(a)\\1', '\\u{1f600}', '[^]']
  const raw = (patterns: string[]) => ({
    type: 'object',
    properties: {
      ...Object.fromEntries(patterns.map((pattern, i) => [`p${i}`, { type: 'string', pattern }])),
      either: { anyOf: patterns.map((pattern) => ({ type: 'string', pattern })) },
      map: {
        type: 'object',
        patternProperties: Object.fromEntries(patterns.map((key) => [key, { type: 'string' }])),
        additionalProperties: false,
      },
    },
  })
  const { properties } = fitted(raw(kept), profile('openai')).schema
  t.strictSame(properties, clean(raw(kept)).properties)
  for (const pattern of unread) {
    const { schema } = fitted(raw([pattern]), profile('openai'))
    t.strictSame(
      schema.properties,
      {
        p0: { type: 'string' },
        either: { anyOf: [{ type: 'string' }] },
        map: { type: 'object', properties: {} },
      },
      pattern,
    )
    t.match(fitted(raw([pattern]), profile('anthropic')).schema, { properties: { p0: { pattern } } })
  }
})

t.test('other names are not forbidden if a target cannot read the pattern of names', async (t) => {
  const map = (pattern: string) => ({
    type: 'object',
    patternProperties: { [pattern]: { type: 'string' } },
    additionalProperties: false,
  })
  const open = { ...free, additionalProperties: true }
  for (const [name, p] of [['gemini', open] as const, ['narrow', free] as const]) {
    const { schema } = fitted({ type: 'object', properties: { p: map('^\\d+$') } }, profile(name))
    t.strictSame(schema.properties, { p }, name)
  }
  t.match(property(map('^\\d+$')), { additionalProperties: false })
  // Many write this pattern, without the `u` flag in mind.
  t.strictSame(property(map('^[\\w\\_]+$')), { ...free, patternProperties: {} })
  const choice = { type: 'object', anyOf: [map('^\\d+$'), { ...free, additionalProperties: false }] }
  t.strictSame(fitted(choice, profile('openai')).schema, free)
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

t.test('any JSON is refused with a reason, or normalised so that it fits every profile', async () => {
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
        const faults = faultsIn(adapted.schema, name)
        if (faults.length > 0) throw new Error(`${name}: ${faults.join('; ')}`)
      }
      return true
    }),
    { seed: 1, numRuns: 400 },
  )
})

t.test('a renamed property is renamed wherever its name stands', async (t) => {
  const c = { type: 'integer' }
  const raw = {
    type: 'object',
    properties: { 'a b': { type: 'string', description: 'theirs' }, '1 c': c, c },
    required: ['a b', 'c'],
    dependentRequired: { 'a b': ['1 c', 'c'], c: ['a b'] },
  }
  const { schema, rename } = fitted(raw, profile('anthropic'))
  const [[sent, own], [other]] = [...(rename ?? [])] as [[string, string], [string, string]]
  t.equal(own, 'a b')
  t.match([sent, other], [/^a_b_[0-9a-f]{6}$/, /^_1_c_[0-9a-f]{6}$/])
  t.strictSame(schema, {
    type: 'object',
    properties: {
      [sent]: { type: 'string', description: 'theirs\nOriginal name: a b' },
      [other]: { type: 'integer', description: 'Original name: 1 c' },
      c,
    },
    required: [sent, 'c'],
    dependentRequired: { [sent]: [other, 'c'], c: [sent] },
  })
  const below = { type: 'object', properties: { at: { ...raw, dependentSchemas: { 'a b': free } } } }
  t.match(
    fitted(below, profile('anthropic')).schema,
    { properties: { at: { dependentSchemas: { [sent]: free } } } },
    'it is renamed in dependentSchemas, too',
  )
  const needs = { type: 'object', properties: {}, dependentRequired: { c: ['a b'] } }
  t.match(
    fitted({ type: 'object', properties: { raw, needs } }, profile('anthropic')).schema,
    { properties: { needs: { dependentRequired: { c: [sent] } } } },
    'and in an object that does not declare it itself',
  )
  const hidden = { type: 'object', properties: { 'a\u200b\u{e0041}\nb': c } }
  const [shown] = Object.values(fitted(hidden, profile('anthropic')).schema.properties as object)
  t.strictSame(shown, { ...c, description: 'Original name: a b' }, 'no characters that nobody sees')
  const taken = { type: 'object', properties: { ...raw.properties, [sent]: {} } }
  const names = Object.keys(fitted(taken, profile('anthropic')).schema.properties as object)
  t.match(names, [/^a_b_[0-9a-f]{8}$/, other, 'c', sent], 'it gets no name that is taken')
})

t.test('renamed properties get their own names back wherever they stand', async () => {
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
      const back = ownNames(sentForm(value, rename) as Record<string, unknown>, rename)
      return JSON.stringify(back) === JSON.stringify(value)
    }),
    { seed: 1, numRuns: 200 },
  )
})
