/** A tool's arguments are checked against its schema; its result is shaped, kept, and read again. */
import { mock } from 'node:test'
import { Worker } from 'node:worker_threads'
import fc from 'fast-check'
import t from 'tap'
import { inspectToolOutput } from '../../src/builtins/inspect_tool_output.ts'
import type { ContentPart } from '../../src/chat/message.ts'
import type { Execution } from '../../src/store/store.ts'
import { cutUtf8, endUtf8 } from '../../src/text.ts'
import type { ExecutorDeps } from '../../src/tools/execute.ts'
import { MODEL_LIMIT, outputSlice, shapeResult } from '../../src/tools/results.ts'
import { createValidator, type Misfit } from '../../src/tools/schema/validate.ts'
import { within } from '../../src/within.ts'
import { SECRET, text } from './declared-tool.ts'

// ---------------------------------------------------------------- arguments

const validator = createValidator()
t.teardown(() => validator.close())
const said = (problems: Misfit[]) =>
  problems.map(({ path, message, property }) => [path.join('.'), message, property ?? ''].join('|'))

t.test('arguments are checked against the server’s schema, whatever its draft', async (t) => {
  const check = async (schema: unknown, value: unknown) => said(await validator.problems(schema, value))
  const bounds = {
    $schema: 'http://json-schema.org/draft-04/schema#',
    type: 'object',
    properties: { n: { type: 'integer', minimum: 0, exclusiveMinimum: true } },
  }
  t.strictSame(await check(bounds, { n: 0 }), ['n|must be > 0|'])
  const tuple = {
    type: 'object',
    properties: {
      p: { type: 'array', items: [{ type: 'string' }, { type: 'number' }], additionalItems: false },
    },
  }
  t.strictSame(await check(tuple, { p: ['a', 1] }), [])
  t.strictSame(await check(tuple, { p: ['a', 'b'] }), ['p.1|must be number|'])
  t.equal((await check(tuple, { p: ['a', 1, 2] })).length, 1)
  const referring = {
    type: 'object',
    properties: {
      a: { $ref: '#/definitions/A' },
      remote: { $ref: 'https://example.org/x.json' },
      b: { $ref: '#/properties/t/items/0' },
      t: { items: [{ type: 'boolean' }] },
      r: { $ref: '#' },
    },
    definitions: { A: { enum: ['x', 'y'] } },
  }
  t.strictSame(await check(referring, { a: 'z' }), ['a|must be one of ["x","y"]|'])
  t.strictSame(await check(referring, { a: 'x', remote: 5, b: true, r: { a: 'y' } }), [])
  t.strictSame(await check(referring, { b: 1 }), ['b|must be boolean|'])
  t.strictSame(await check(referring, { r: { r: { a: 1 } } }), ['r.r.a|must be one of ["x","y"]|'])
  t.strictSame(
    await check({ type: 'object', properties: { a: { type: 'string', nullable: true } } }, { a: null }),
    [],
  )
  const nullable = {
    type: 'object',
    properties: {
      a: { $ref: '#/definitions/A', nullable: true },
      b: { allOf: [{ $ref: '#/definitions/A' }], nullable: true },
      c: { $anchor: 'C', oneOf: [{ $ref: '#/definitions/A' }, { type: 'number' }], nullable: true },
      d: { $ref: '#/properties/c/oneOf/1' },
      e: { $ref: '#C' },
    },
    definitions: { A: { enum: ['x'] } },
  }
  t.strictSame(await check(nullable, { a: null, b: null, c: null, e: null }), [])
  t.strictSame(await check(nullable, { a: 'x', b: 'x', c: 'x' }), [])
  t.match(await check(nullable, { b: 'y' }), ['b|must be one of ["x"]|'])
  t.strictSame(await check(nullable, { d: 'x' }), ['d|must be number|'])
  const elsewhere = {
    type: 'object',
    properties: {
      a: { $ref: '#/components/schemas/A' },
      any: { $ref: '#/components/schemas/Any' },
      b: { type: 'string' },
    },
    components: { schemas: { A: { type: 'object' }, Any: true } },
  }
  t.strictSame(await check(elsewhere, { a: 1, any: 1, b: 1 }), ['a|must be object|', 'b|must be string|'])
  const closed = {
    type: 'object',
    properties: {
      x: { $ref: '#/definitions/A', type: 'object', additionalProperties: false },
      y: { $ref: 'https://example.org/y.json', type: 'string' },
    },
    definitions: { A: { type: 'object', properties: { a: { type: 'string' } } } },
  }
  const draft7 = { $schema: 'http://json-schema.org/draft-07/schema#', ...closed }
  t.strictSame(await check(draft7, { x: { a: 'y' }, y: 1 }), [], 'before 2019-09 a reference stands alone')
  t.strictSame(await check(draft7, { x: { a: 1 } }), ['x.a|must be string|'])
  const beside = { ...draft7.properties, z: { $ref: '#/properties/x/additionalProperties/not' } }
  const x = { $ref: '#/definitions/A', additionalProperties: { not: { type: 'null' } } }
  t.strictSame(
    await check({ ...draft7, properties: { ...beside, x } }, { x: { a: 1 }, z: 1 }),
    ['x.a|must be string|', 'z|must be null|'],
    'a reference leads to any place, also beside one',
  )
  t.strictSame(await check(closed, { x: { a: 'y' } }), ['x|must not have the property|a'])
  t.strictSame(
    await check(
      { type: 'object', properties: { a: { type: 'file' }, b: { type: 'string', format: 'uri' } } },
      { a: 1, b: 'no uri' },
    ),
    [],
  )
  t.strictSame(
    await check(
      { type: 'object', properties: { a: { type: 'string', pattern: '^[\\w\\_-]+$' } } },
      { a: '!' },
    ),
    ['a|must match pattern "^[\\w\\_-]+$"|'],
  )
  t.strictSame(
    await check({ type: 'object', properties: { a: { type: 'string', pattern: '(' } } }, { a: 'x' }),
    [],
  )
  t.strictSame(await check({ type: 'object', properties: { a: true, b: false } }, { a: 1, b: 2 }), [
    'b|boolean schema is false|',
  ])
  // `constructor` is Formula 1's word for a team, and a property that every object inherits.
  const inherited = {
    type: 'object',
    properties: { constructor: { type: 'string' }, toString: { type: 'boolean' } },
  }
  t.strictSame(await check(inherited, {}), [])
  t.strictSame(await check(inherited, { constructor: 5 }), ['constructor|must be string|'])
  t.strictSame(await check({ ...inherited, required: ['constructor'] }, {}), [
    '|must have the property|constructor',
  ])
  t.strictSame(await check({ type: 'object', required: 'nonsense', properties: [] }, {}), [])
  const contrary = { type: 'object', properties: { a: { type: 'string', enum: [1, 2] } } }
  t.strictSame(await check(contrary, { a: 1 }), [], 'values that are all of other types than the named ones')
  t.strictSame(await check(contrary, { a: 3 }), ['a|must be one of [1,2]|'])
  t.strictSame(await check(null, { a: 1 }), [])
})

t.test('a `not`, `if` or `oneOf` with a part that cannot be checked refuses nothing', async (t) => {
  const check = async (x: unknown, value: unknown, definitions: object = {}) => {
    const schema = { type: 'object', properties: { x }, definitions }
    return said(await validator.problems(schema, { x: value }))
  }
  const unread = [
    { type: 'object', unevaluatedProperties: false },
    { $ref: 'https://example.org/x.json' },
    { type: 'file' },
    { type: 'string', format: 'uri' },
    { type: 'string', pattern: '(?i)drop' },
    { not: { $ref: '#/definitions/none' } },
    { $ref: '#/definitions/D' },
  ]
  const then = false
  const others = { D: { anyOf: [{ $ref: '#/definitions/E' }] }, E: { minContains: 2, contains: {} } }
  for (const test of unread) {
    const words = JSON.stringify(test)
    for (const value of ['a', ['a'], { a: 1 }]) {
      t.strictSame(await check({ not: test }, value, others), [], `not ${words}`)
      t.strictSame(await check({ if: test, then, else: then }, value, others), [], `if ${words}`)
      t.strictSame(await check({ oneOf: [{}, test] }, value, others), [], `oneOf ${words}`)
    }
  }
  const dates = ['date', 'date-time'].map((format) => ({ type: 'string', format }))
  t.strictSame(await check({ oneOf: dates }, '2026-11-27'), [])
  t.strictSame(await check({ oneOf: dates }, 5), [
    'x|must be string|',
    'x|must be string|',
    'x|must match a schema in anyOf|',
  ])
  const into = { x: { oneOf: [{ type: 'string' }, unread[0]] }, y: { $ref: '#/properties/x/oneOf/0' } }
  t.strictSame(
    said(await validator.problems({ type: 'object', properties: into }, { x: 1, y: 1 })).at(-1),
    'y|must be string|',
    'a reference into a relaxed one still leads there',
  )
  const whole = { not: { $ref: '#/definitions/D' } }
  t.strictSame(await check(whole, 'a', { D: { type: 'string' } }), ['x|must NOT be valid|'])
  t.strictSame(await check({ oneOf: [{ type: 'string' }, { minLength: 1 }] }, 'a'), [
    'x|must match exactly one schema in oneOf|',
  ])
})

t.test('a pattern that JavaScript would read in another way is not checked', async (t) => {
  const check = async (x: object, value: unknown) =>
    said(await validator.problems({ type: 'object', properties: { x } }, { x: value }))
  for (const pattern of ['\\A[a-z]+\\z', '^[[:alpha:]]+$', '^[\\p{L}\\_]+$', '(?i)^A', '(?P<a>b)']) {
    t.strictSame(await check({ type: 'string', pattern }, 'xyz'), [], pattern)
    const named = { type: 'object', patternProperties: { [pattern]: false }, additionalProperties: false }
    t.strictSame(await check(named, { xyz: 1 }), [], pattern)
  }
  t.strictSame(await check({ type: 'string', pattern: '^\\p{Lu}$' }, 'a'), [
    'x|must match pattern "^\\p{Lu}$"|',
  ])
  t.strictSame(await check({ type: 'string', pattern: '^\\\\A\\_$' }, 'A'), [
    'x|must match pattern "^\\\\A\\_$"|',
  ])
})

t.test('a pattern with letters of any script in some languages checks texts of ASCII alone', async (t) => {
  const check = async (x: object, value: unknown) =>
    said(await validator.problems({ type: 'object', properties: { x } }, { x: value }))
  const file = { type: 'string', pattern: '^[\\w .-]+$' }
  t.strictSame(await check(file, 'Übersicht.md'), [])
  t.strictSame(await check(file, 'a/b.md'), ['x|must match pattern "^[\\w .-]+$"|'])
  t.strictSame(await check({ type: 'string', pattern: '^[a-z]+$' }, 'ü'), [
    'x|must match pattern "^[a-z]+$"|',
  ])
  t.strictSame(await check({ not: { type: 'string', pattern: '\\W' } }, 'ü'), [])
  t.strictSame(await check({ oneOf: [file, { type: 'string', pattern: '^ü' }] }, 'ü'), [])
})

t.test('a decimal fraction counts as a multiple of 0.01 if it has two decimals', async (t) => {
  const schema = { type: 'object', properties: { price: { type: 'number', multipleOf: 0.01 } } }
  for (const price of [19.99, 0.07, 1_234_567.89]) {
    t.strictSame(await validator.problems(schema, { price }), [], String(price))
  }
  t.strictSame(said(await validator.problems(schema, { price: 19.995 })), ['price|must be multiple of 0.01|'])
})

t.test('arguments are checked against a schema although many other schemas came after it', async (t) => {
  const bounded = (maxLength: number) => ({
    type: 'object',
    properties: { a: { type: 'string', maxLength } },
  })
  const check = async (a: unknown) => said(await validator.problems(bounded(7), { a }))
  t.strictSame(await check(1), ['a|must be string|'])
  for (let i = 1_000; i < 1_310; i++) await validator.problems(bounded(i), { a: 'x' })
  t.strictSame(await check(1), ['a|must be string|'])
  t.strictSame(await check('fits'), [])
})

t.test('a hostile schema blocks its own thread, not the gateway', async (t) => {
  const own = createValidator(1_000)
  t.teardown(() => own.close())
  await own.problems({ type: 'object' }, {})
  const slow = { type: 'object', properties: { s: { type: 'string', pattern: '^(a+)+$' } } }
  const bomb = {
    type: 'object',
    properties: Object.fromEntries(
      Array.from({ length: 3_000 }, (_, i) => [
        `p${i}`,
        {
          anyOf: [
            { type: 'string', minLength: i },
            { type: 'object', properties: { x: { const: i } } },
          ],
        },
      ]),
    ),
  }
  let longest = 0
  let last = performance.now()
  const beat = setInterval(() => {
    longest = Math.max(longest, performance.now() - last)
    last = performance.now()
  }, 5)
  t.strictSame(
    await own.problems(slow, { s: `${'a'.repeat(40)}!` }),
    [],
    'the arguments are let through: the server checks them, too',
  )
  await own.problems(bomb, { p1: 'x' })
  clearInterval(beat)
  t.ok(longest < 3_000, `the event loop was held for ${Math.round(longest)} ms`)
  const started = performance.now()
  t.strictSame(await own.problems(slow, { s: `${'a'.repeat(40)}!` }), [])
  t.ok(performance.now() - started < 900, 'a refused schema is not tried again')
  const fine = { type: 'object', properties: { a: { type: 'string' } } }
  t.strictSame(said(await own.problems(fine, { a: 1 })), ['a|must be string|'], 'the next thread works')
  let deep: Record<string, unknown> = {}
  for (let i = 0; i < 100_000; i++) deep = { a: deep }
  t.strictSame(await own.problems(fine, deep), [])
  t.strictSame(await own.problems(deep, {}), [])
})

t.test('slow schemas of one server do not hold up the calls of others', async (t) => {
  const own = createValidator(100)
  t.teardown(() => own.close())
  const slow = (i: number) => ({ properties: { s: { pattern: '^(a+)+$' }, [`p${i}`]: {} } })
  const flood = Array.from({ length: 8 }, (_, i) => own.problems(slow(i), { s: `${'a'.repeat(40)}!` }))
  const other = { required: ['a'] }
  t.strictSame(await own.problems(other, {}), [], 'let through: after all of them it would be checked')
  await Promise.all(flood)
  t.equal((await own.problems(other, {})).length, 1, 'afterwards calls are checked')
})

t.test('time in which the process stood still does not count against a schema', async (t) => {
  const own = createValidator(100)
  t.teardown(() => own.close())
  const schema = { type: 'object', properties: { a: { type: 'string' } } }
  await own.problems(schema, {})
  for (const stands of [true, false]) {
    // After an immediate the event loop runs timers first, and messages of other threads only then.
    await new Promise((resolve) => setImmediate(resolve))
    const asked = own.problems(schema, { a: 1 })
    if (stands) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 400)
    t.strictSame(said(await asked), ['a|must be string|'])
  }
})

t.test('a validator waits for a thread that starts slowly, and does not blame the schema', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const schema = { type: 'object', required: ['a'] }
  const own = createValidator(1_000)
  t.teardown(() => own.close())
  const first = own.problems(schema, {})
  mock.timers.tick(1_000)
  t.equal((await first).length, 1, 'the first check may take longer than later ones')
  const late = createValidator(1_000)
  t.teardown(() => late.close())
  const given = late.problems(schema, {})
  mock.timers.tick(15_000)
  t.same(await given, [], 'the arguments are let through')
  t.equal((await late.problems(schema, {})).length, 1)
})

t.test('while the machine has no thread left, calls are let through unchecked, and none waits', async (t) => {
  let isFull = true
  const own = createValidator(1_000, () => {
    if (isFull) throw new Error('Worker initialization failure: EAGAIN')
    return new Worker(new URL('../../src/tools/schema/validate-worker.js', import.meta.url))
  })
  t.teardown(() => own.close())
  const schema = { type: 'object', required: ['a'] }
  const asked = Promise.all([1, 2].map(() => own.problems(schema, {})))
  t.strictSame(await within(5_000, asked), [[], []])
  isFull = false
  t.equal((await own.problems(schema, {})).length, 1, 'afterwards calls are checked')
})

t.test('closing a validator answers every check that waits', async (t) => {
  const own = createValidator()
  const waiting = Promise.all(
    [1, 2, 3].map((a) => own.problems({ type: 'object', properties: { a: { const: 9 } } }, { a })),
  )
  await own.close()
  t.strictSame(await waiting, [[], [], []])
  t.strictSame(await own.problems({ type: 'object' }, {}), [])
})

// ---------------------------------------------------------------- results

const shape = (content: ContentPart[], structured?: unknown, canInspect = true) =>
  shapeResult(
    { content, ...(structured === undefined ? {} : { structured }), is_error: false },
    'exec_7',
    canInspect,
  )

t.test('a long text is kept whole, and the model gets its head, its tail and a way to read on', async (t) => {
  const whole = `${'début '.repeat(20_000)}the end`
  const { content, spill, stored, bytes } = await shape([text(whole)])
  t.equal(stored.output, whole)
  t.strictSame(spill, { exec_id: 'exec_7', bytes: Buffer.byteLength(whole) })
  t.equal(bytes, Buffer.byteLength(whole))
  const [part] = content
  const given = part?.type === 'text' ? part.text : ''
  t.ok(Buffer.byteLength(given) <= MODEL_LIMIT)
  t.match(given, /^début début/)
  t.match(given, /the end$/)
  const [, offset] = given.match(/"exec_id": "exec_7", "offset": (\d+)/) ?? []
  const next = outputSlice(stored, { path: '', offset: Number(offset), limit: 12 })
  t.equal(given.indexOf(`\n\n[The result is`), Buffer.from(whole).toString('utf8', 0, Number(offset)).length)
  t.equal(next.offset, Number(offset), 'the notice points between characters')
  const unread = JSON.stringify((await shape([text(whole)], undefined, false)).content)
  t.match(unread, /The rest is kept/)
  t.notMatch(unread, /inspect_tool_output/)
})

t.test('the offset for reading on fits the stored text, in which secrets are masked', async (t) => {
  const lines = Array.from({ length: 4_500 }, (_, i) => `line ${i} ${i % 50 === 0 ? SECRET : 'nothing'}`)
  const words = lines.join('\n')
  const rows = lines.map((line, i) => ({
    line,
    config: JSON.stringify({ password: i % 10 === 0 ? 'p'.repeat(30) : '' }),
  }))
  const configs = rows.map(({ config }) => config).join('\n')
  const picture: ContentPart = { type: 'image', media_type: 'image/png', data: 'iVBORw0KGgo=' }
  const before = 'line \n'.repeat(9_000).slice(0, 40_000)
  const token = `eyJ${'h'.repeat(100)}.eyJ${'p'.repeat(2_000)}.${'s'.repeat(300)}`
  const cases: [where: string, content: ContentPart[], structured: unknown, whole: string][] = [
    ['in lines', [text(words)], undefined, words],
    ['beside media', [text(words), picture], undefined, words],
    ['in JSON in JSON', [], rows, JSON.stringify(rows)],
    ['in both', [text(configs)], rows, JSON.stringify({ text: configs, structured: rows })],
    ['where the text is cut', [text(`${before} ${token}\n${words}`)], undefined, ''],
  ]
  for (const [where, content, structured, whole] of cases) {
    const { content: given, stored } = await shape(content, structured)
    const said = given[0]?.type === 'text' ? given[0].text : ''
    const [head = ''] = said.split('\n\n[The result is')
    const [, offset] = said.match(/"offset": (\d+)/) ?? []
    const { content: read } = outputSlice(stored, { path: '', offset: Number(offset), limit: 40 })
    t.notMatch(stored.output, SECRET)
    const next = whole === '' ? '\nline 0 ' : whole.slice(head.length, head.length + 8)
    t.equal(read.slice(0, 8), next, where)
  }
})

t.test('reading on leaves nothing out although several secret names became one mask', async (t) => {
  const name = (n: number) => `sk-${String(n).padStart(24, 'a')}`
  const rows = Array.from({ length: 2_000 }, (_, n) => ({ [name(2 * n)]: 1, n, [name(2 * n + 1)]: 2 }))
  const { content, stored } = await shape([], rows)
  const given = content[0]?.type === 'text' ? content[0].text : ''
  const [head = ''] = given.split('\n\n[The result is')
  const [, offset] = given.match(/"offset": (\d+)/) ?? []
  const shown = [...head.matchAll(/"n":(\d+)/g)].length
  const { content: read } = outputSlice(stored, { path: '', offset: Number(offset), limit: 100 })
  t.ok(Number(/"n":(\d+)/.exec(read)?.[1]) <= shown)
})

t.test('results that repeat themselves are shaped within seconds', async (t) => {
  const { user: before } = process.cpuUsage()
  // Right after a secret, since the place for reading on is looked for behind it.
  const token = `eyJ${'a'.repeat(8_000)}.eyJ${'a'.repeat(16_000)}.${'a'.repeat(2_048)}`
  const { content } = await shape([text(token + 'a'.repeat(4 << 20))])
  t.match(content, [{ text: /"offset": \d+/ }])
  const said = text(`${'a'.repeat(60_000)}b${'a'.repeat(600)}`)
  const values = Array(100).fill(`ab${'a'.repeat(600)}`)
  const many = Array(9_000).fill('ab')
  for (let calls = 0; calls < 8; calls++)
    for (const found of [values, many]) t.strictSame((await shape([said], { found })).content, [said])
  t.ok((process.cpuUsage().user - before) / 1e6 < 5, 'a search that starts anew at each place takes a minute')
})

t.test('a structured result keeps its structure, and a cut is always told', async (t) => {
  const rows = (length: number) => Array.from({ length }, (_, i) => ({ id: i }))
  const small = { items: [1, 2, 3] }
  const output = JSON.stringify(small)
  t.strictSame(await shape([], small), {
    content: [text(output)],
    structured: small,
    stored: { output, structured: true },
    bytes: output.length,
  })
  const big = { items: rows(9_000) }
  const repeated = await shape([text(JSON.stringify(big, null, 2))], big)
  t.equal(repeated.structured, undefined)
  t.equal(repeated.content.length, 1)
  t.strictSame(JSON.parse(repeated.stored.output), big)
  t.equal(outputSlice(repeated.stored, { path: '/items/8999/id', offset: 0, limit: 10 }).content, '8999')
  t.strictSame(repeated.spill, { exec_id: 'exec_7', bytes: repeated.bytes })
  const [, offset] = JSON.stringify(repeated.content).match(/offset[^\d]+(\d+)/) ?? []
  const head = repeated.stored.output.slice(0, Number(offset))
  t.match(
    repeated.content,
    [{ text: `${head}\n\n[` }],
    'the head is that of the stored text, not of the server’s text',
  )
  t.strictSame(await shape([], big), repeated, 'a text that repeats the structured result changes nothing')
  const wide = { items: rows(5_000) }
  const laidOut = await shape([text(JSON.stringify(wide, null, 4))], wide)
  t.strictSame(laidOut, await shape([], wide), 'JSON that is too long only as it was laid out is given whole')
  const exact = JSON.stringify(big).replace('{"id":1}', '{"id":9007199254740993}')
  const rounded = await shape([text(exact)], JSON.parse(exact))
  t.match(
    rounded.content,
    [{ text: /9007199254740993/ }],
    'a large id keeps the digits that the server wrote',
  )
  const told = await shape([text('9000 items')], big)
  t.match(told.content, [
    text('9000 items'),
    { text: /structured result of \d+ bytes.*exec_7", "offset": 0\}/ },
  ])
  t.strictSame(JSON.parse(told.stored.output), big)
  const long = 'z'.repeat(MODEL_LIMIT + 1)
  t.equal((await shape([text(long.slice(1))])).spill, undefined, 'a text that just fits is given whole')
  const both = await shape([text(long)], big)
  t.equal(outputSlice(both.stored, { path: '/text', offset: MODEL_LIMIT, limit: 10 }).content, 'z')
  for (const path of ['/structured/items/1/id', '/items/1/id'])
    t.equal(outputSlice(both.stored, { path, offset: 0, limit: 10 }).content, '1', path)
  t.throws(() => outputSlice(both.stored, { path: '/none', offset: 0, limit: 1 }), {
    code: 'invalid_request',
    param: 'path',
  })
  const wordy = await shape([text(long)], small)
  t.match(wordy, { structured: small, stored: { output: long, structured: false } })
  t.match(wordy.content, [{ text: /its middle is left out/ }, text('{"items":[1,2,3]}')])
  const log = Array.from({ length: 9_000 }, (_, i) => `step ${i}`).join('\n')
  t.strictSame((await shape([text(log)], { exit_code: 1 })).content.slice(1), [text('{"exit_code":1}')])
  const some = { ids: rows(1_000) }
  t.match((await shape([text(long)], some)).stored, {
    output: JSON.stringify({ text: long, structured: some }),
  })
})

t.test('a text that a server wraps in a structure counts once', async (t) => {
  const long = 'line\n'.repeat(20_000)
  const { content, stored } = await shape([text(long)], { result: long })
  t.strictSame(stored, { output: JSON.stringify({ result: long }), structured: true })
  t.match(content, [{ text: /^\{"result":"line.*its middle is left out/s }])
  const lines = 'a\n'.repeat(MODEL_LIMIT / 2)
  const whole = await shape([text(lines)], { result: lines })
  t.strictSame([whole.content, whole.spill], [[text(lines)], undefined], 'it just fits, as JSON it would not')

  const result = Array.from({ length: 9_000 }, (_, id) => ({ id, name: 'a' }))
  const list = await shape([text(JSON.stringify(result))], { result })
  t.strictSame(list, await shape([], { result }), 'a list, too')
  const items = await shape(
    result.map((item) => text(JSON.stringify(item, null, 2))),
    { result },
  )
  t.strictSame(items, list, 'also with a text for each item')
  const more = await shape([text(JSON.stringify(result)), text('More on page 2.')], { result })
  t.strictSame(JSON.parse(more.stored.output).structured, { result }, 'and nothing else is lost')
})

t.test(
  'half a character that a server cut off is replaced in the structure as it is in the text',
  async (t) => {
    const cut = '👋👋'.slice(0, 3)
    const { content, structured } = await shape([text(cut)], { result: cut })
    t.strictSame(content, [text('👋\ufffd')], 'which still counts as the same')
    t.strictSame(structured, { result: '👋\ufffd' })
  },
)

t.test('what only the structure says is shown beside the text, or named with a way to read it', async (t) => {
  const small = { items: [1, 2, 3] }
  const { content, structured } = await shape([text('three items')], small)
  t.strictSame(content, [text('three items'), text('{"items":[1,2,3]}')])
  t.strictSame(structured, small)
  t.strictSame(
    (await shape([text('')], small)).content,
    [text('{"items":[1,2,3]}')],
    'an empty text tells nothing',
  )
  const rows = Array.from({ length: 200 }, (_, id) => ({ id, name: `row "${id}"` }))
  const named = await shape([text('200 rows')], { rows })
  t.match(named.content, [text('200 rows'), { text: /structured result of \d+ bytes.*exec_7/ }])
  t.equal(named.content.length, 2)
  t.equal(outputSlice(named.stored, { path: '/rows/7/name', offset: 0, limit: 20 }).content, 'row "7"')
  const unread = await shape([text('200 rows')], { rows }, false)
  t.strictSame(
    unread.content[1],
    text(JSON.stringify({ rows })),
    'a model that cannot read on gets it at once',
  )
  const told: [string[], unknown][] = [
    [['done'], { result: 'done' }],
    [rows.map((row) => JSON.stringify(row)), { result: rows }],
    [[rows.map(({ id, name }) => `- **${name}** (no. ${id})`).join('\n')], { rows }],
    [['Nothing was found.'], { rows: [], more: false, next: null }],
    [['{"id": 9007199254740993}'], JSON.parse('{"id": 9007199254740993}')],
  ]
  for (const [texts, whole] of told)
    t.strictSame(
      (await shape(texts.map(text), whole)).content,
      texts.map(text),
      'a text that says it all stays alone',
    )
})

t.test('a text file is kept and abridged like a text', async (t) => {
  const file = (media_type: string, words: string): ContentPart => {
    return { type: 'file', media_type, data: Buffer.from(words).toString('base64'), name: 'file:///a' }
  }
  for (const type of [
    'text/csv; charset=utf-8',
    'application/json',
    'application/atom+xml',
    'application/yaml',
  ]) {
    const { content, stored } = await shape([file(type, 'a,b')])
    t.strictSame([content, stored.output], [[text('[file:///a]\na,b')], '[file:///a]\na,b'], type)
  }
  const long = await shape([file('text/csv', 'a,b\n'.repeat(50_000))])
  t.match(long.spill, { bytes: 200_012 })
  t.match(long.content, [{ text: /its middle is left out/ }])
})

t.test('media within the limits pass whole, and others are replaced by a line that names them', async (t) => {
  const image = (media_type: string, bytes: number, start = 'iVBORw0KGgo'): ContentPart => ({
    type: 'image',
    media_type,
    data: start + 'A'.repeat(Math.ceil((bytes * 4) / 3) - start.length),
  })
  const fine = image('image/jpg', 1_002)
  const { content, stored } = await shape([
    text('see'),
    fine,
    image('image/tiff', 10, 'SUkqAAg'),
    image('image/png', 6 * 1024 * 1024),
    image('image/png', 10, 'PHN2Zy8'),
    { type: 'file', media_type: 'application/gzip', data: 'H4sI', name: 'file:///a.gz' },
    { type: 'audio', media_type: `audio/${'a'.repeat(128)}`, data: 'AAAA' },
  ])
  t.strictSame(
    content[1],
    { ...fine, media_type: 'image/png' },
    'the image keeps its place and gets its real type',
  )
  t.match(content, [
    text('see'),
    { type: 'image' },
    { text: /image\/tiff.*not passed on/ },
    { text: /bytes is more than/ },
    { text: /image\/png.*something else/ },
    { text: '[file, file:///a.gz, application/gzip: this type is not passed on]' },
    { text: /audio\/a{128}: this type is not passed on/ },
  ])
  t.match(stored.output, /^see\n\n\[image, image\/tiff/)
  t.match(stored.output, /\[image, image\/png, 1002 bytes\]/)
  const starts = { jpeg: '/9j/4AAQSkZJRgABAQAA', gif: 'R0lGODlhAQABAIAAAAAA', webp: 'UklGRiQAAABXRUJQVlA4' }
  for (const [kind, start] of Object.entries(starts)) {
    const shaped = await shape([image('image/png', 100, start), image('image/jpg', 100, start)])
    t.match(
      shaped.content,
      [{ media_type: `image/${kind}` }, { media_type: `image/${kind}` }],
      'the image gets the type that its bytes show',
    )
  }
  const latin: ContentPart = { type: 'file', media_type: 'text/csv; charset=latin1', data: 'Wm/r' }
  t.strictSame((await shape([latin])).content, [text('[file]\nZoë')], 'a text in an older charset is text')
  const drawing: ContentPart = { type: 'image', media_type: 'image/svg+xml', data: 'PHN2Zy8+' }
  t.strictSame((await shape([drawing])).content, [text('[file]\n<svg/>')], 'so is a drawing in XML')
  const binary: ContentPart = { type: 'file', media_type: 'text/csv; a=b', data: '6wAB' }
  t.strictSame(
    (await shape([binary])).content,
    [{ ...binary, media_type: 'text/csv' }],
    'the media type loses its parameters',
  )
  t.match((await shape([text('a\ud800b\u0000c')])).content, [text('a\ufffdb\ufffdc')])
  const alone = await shape([fine], { a: 1 })
  t.match(alone.content, [text('{"a":1}'), { type: 'image' }], 'the image follows the structured result')
  t.match((await shape([fine])).stored.output, /^\[image, image\/png, \d+ bytes\]$/)
  const behind = await shape([fine, text('z'.repeat(MODEL_LIMIT + 1))])
  t.match(
    behind.content,
    [{ text: /its middle is left out/ }, { type: 'image' }],
    'the image follows the abridged text',
  )
})

t.test('a medium that the structure repeats is named there, and its data are given once', async (t) => {
  const data = Buffer.concat([Buffer.from('89504e470d0a1a0a', 'hex'), Buffer.alloc(90_000, 7)]).toString(
    'base64',
  )
  const image = { type: 'image', media_type: 'image/png', data } as const
  const name = `[image, image/png, ${Math.floor((data.length * 3) / 4)} bytes]`
  const again = { content: [{ type: 'image', data, mimeType: 'image/png' }] }
  const alone = await shape([image], again)
  const structured = { content: [{ type: 'image', data: name, mimeType: 'image/png' }] }
  t.strictSame(alone.content, [text(JSON.stringify(structured)), image])
  t.strictSame(alone.structured, structured, 'what else it says is kept')
  t.equal(alone.spill, undefined)
  const beside = await shape([text('taken'), image], { wide: 20, url: `data:image/png;base64,${data}` })
  t.strictSame(beside.content, [text('taken'), image, text(JSON.stringify({ wide: 20, url: name }))])
  const archive = Buffer.from(`PK\x03\x04${'x'.repeat(100)}`).toString('base64')
  const long = `application/${'z'.repeat(10_000)}`
  const kept = await shape([{ type: 'file', media_type: long, data: archive }], { blobs: [archive, archive] })
  t.strictSame(kept.structured, { blobs: [archive, archive] }, 'what is not passed on is nowhere else')
  const short = { ...image, data: data.slice(0, 40) }
  t.match(await shape([text('taken'), short], { id: short.data }), { structured: { id: short.data } })
})

t.test('slices of an output join to the whole, and none splits a character', async () => {
  fc.assert(
    fc.property(
      fc.string({ unit: 'grapheme', maxLength: 60 }),
      fc.integer({ min: 1, max: 9 }),
      (whole, limit) => {
        const stored = { output: whole, structured: false }
        let read = ''
        for (let offset: number | null = 0; offset !== null; ) {
          const slice = outputSlice(stored, { path: '', offset, limit })
          if (
            slice.total_bytes !== Buffer.byteLength(whole) ||
            slice.content.includes('\ufffd') !== whole.includes('\ufffd')
          )
            return false
          if (slice.next_offset !== null && slice.next_offset <= offset) return false
          read += slice.content
          offset = slice.next_offset
        }
        const bytes = limit * 3
        return (
          read === whole &&
          whole.startsWith(cutUtf8(whole, bytes)) &&
          whole.endsWith(endUtf8(whole, bytes)) &&
          Buffer.byteLength(endUtf8(whole, bytes)) <= bytes
        )
      },
    ),
    { seed: 1, numRuns: 300 },
  )
})

t.test('a path leads into a structured output, and a wrong path is refused', async (t) => {
  const stored = { output: JSON.stringify({ 'a/b': { 'c~d': ['x', { y: 'words' }] } }), structured: true }
  const at = (path: string) => outputSlice(stored, { path, offset: 0, limit: 100 }).content
  t.equal(at('/a~1b/c~0d/1/y'), 'words')
  t.equal(at('/a~1b/c~0d/1'), '{"y":"words"}')
  t.equal(at('/a~1b/c~0d/0'), 'x')
  const text = { ...stored, structured: false }
  const { content } = outputSlice(text, { path: '/a~1b/c~0d/0', offset: 0, limit: 100 })
  t.equal(content, 'x', 'also into a text that is JSON')
  for (const path of ['a', '/none', '/a~1b/c~0d/length', '/a~1b/c~0d/01', '/a~1b/c~0d/0/0', '/__proto__']) {
    t.throws(() => at(path), { code: 'invalid_request', param: 'path' }, path)
  }
  const deep = `${'['.repeat(300_000)}${']'.repeat(300_000)}`
  t.throws(
    () => outputSlice({ output: deep, structured: false }, { path: '/0', offset: 0, limit: 1 }),
    { message: /read it by offset/ },
    'a text that takes seconds to parse is not walked',
  )
  t.throws(() => outputSlice({ output: 'plain', structured: false }, { path: '/a', offset: 0, limit: 1 }), {
    code: 'invalid_request',
  })
})

t.test('inspect_tool_output reads outputs of its own conversation only', async (t) => {
  const output = 'é'.repeat(20_000)
  const executions = {
    get: async (_: unknown, id: string) =>
      id === 'exec_1' ? ({ id, session_id: 'ses_1' } as Execution) : null,
    output: async (_: unknown, id: string) => (id === 'exec_1' ? { output, structured: false } : null),
  } as unknown as ExecutorDeps['store']['executions']
  const look = (args: Record<string, unknown>, session_id = 'ses_1') =>
    inspectToolOutput.run(args, { store: { executions }, scope: { owner: 'o', admin: false }, session_id })
  t.match(await look({ exec_id: 'exec_1' }), {
    is_error: false,
    content: [{ text: /Bytes 0 to 16384 of 40000\. Go on at offset 16384/ }],
  })
  t.match(await look({ exec_id: 'exec_1', offset: 39_999 }), {
    content: [{ text: /^é\n\n.*This is the end/s }],
  })
  t.match(await look({ exec_id: 'exec_1' }, 'ses_2'), {
    is_error: true,
    content: [{ text: /no stored output/ }],
  })
  t.match(await look({ exec_id: 'exec_2' }), { is_error: true })
  t.match(await look({ exec_id: 'exec_1', path: '/x' }), { is_error: true, content: [{ text: /is text/ }] })
})
