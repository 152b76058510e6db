/** Reading what servers say: tool lists are repaired, results become canonical parts. */
import { readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { readResult } from '../../src/mcp/content.ts'
import type { McpTool } from '../../src/mcp/contract.ts'
import { hashTools, repairTools } from '../../src/mcp/repair.ts'

const FIXTURES = new URL('../../../test/fixtures/mcp-tools/', import.meta.url)
const object = { type: 'object' }

t.test('a malformed tool is repaired, or alone left out, with its reason', (t) => {
  const cases: [entry: unknown, outcome: object | RegExp | null][] = [
    [
      { name: 'ok', inputSchema: object },
      { name: 'ok', inputSchema: object },
    ],
    [{ name: 'a' }, { inputSchema: { type: 'object', properties: {} } }],
    [{ name: 'a', inputSchema: true }, { inputSchema: { type: 'object', properties: {} } }],
    [{ name: 'a', inputSchema: {} }, { inputSchema: object }],
    [{ name: 'a', inputSchema: { type: ['object', 'null'] } }, { inputSchema: object }],
    [{ name: 'a', inputSchema: { type: 'string' } }, /left out: its inputSchema describes "string"/],
    [{ name: 'a\0b' }, null],
    [{ name: 'a\ud800' }, null],
    [{ name: 'a', inputSchema: [] }, /left out: its inputSchema is not a JSON Schema object/],
    [{ name: 'a', inputSchema: { ...object, properties: [] } }, { inputSchema: { properties: {} } }],
    [
      { name: 'a', inputSchema: { ...object, properties: { x: null, y: true, z: object } } },
      { inputSchema: { properties: { x: {}, y: true, z: object } } },
    ],
    [{ name: 'a', inputSchema: { ...object, required: true } }, { inputSchema: { required: undefined } }],
    [{ name: 'a', inputSchema: { ...object, required: ['x', 1] } }, { inputSchema: { required: ['x'] } }],
    [{ name: 'a', inputSchema: object, description: null }, { description: undefined }],
    [{ name: 'a', inputSchema: object, description: 7 }, { description: undefined }],
    [
      { name: 'a', inputSchema: object, title: 'A', description: 'b' },
      { title: 'A', description: 'b' },
    ],
    [
      { name: 'a', inputSchema: object, annotations: { readOnlyHint: 'yes', idempotentHint: true } },
      { annotations: { idempotentHint: true } },
    ],
    [{ name: 'a', inputSchema: object, annotations: 'none' }, { annotations: undefined }],
    [{ name: 'a', inputSchema: object, execution: { taskSupport: 'required' } }, /only runs as a task/],
    [{ name: 'a', inputSchema: object, execution: { taskSupport: 'optional' } }, { name: 'a' }],
    [{ name: 'a', inputSchema: object, _meta: { ui: { visibility: ['app'] } } }, /not for a model/],
    [{ name: 'a', inputSchema: object, _meta: { ui: { visibility: ['model', 'app'] } } }, { name: 'a' }],
    [{ name: 'a', inputSchema: object, _meta: { ui: { visibility: [] } } }, { name: 'a' }],
    [{ name: 'n'.repeat(400), inputSchema: object }, { inputSchema: object }],
    [{ name: 'n'.repeat(401), inputSchema: object }, /name has more than 400/],
    [{ name: 'a', inputSchema: object, description: 'd'.repeat(300_000) }, /larger than/],
    [{ name: 'a', inputSchema: { ...object, properties: { x: nested(100) } } }, /nested more than 64/],
    [{ name: '', inputSchema: object }, null],
    [{ inputSchema: object }, null],
    ['tool', null],
    [null, null],
  ]
  for (const [entry, outcome] of cases) {
    const label = JSON.stringify(entry).slice(0, 90)
    const { tools, left_out } = repairTools([entry, { name: 'bystander', inputSchema: object }])
    t.ok(
      tools.some(({ name }) => name === 'bystander'),
      `the other tool stays beside ${label}`,
    )
    const tool = tools.find(({ name }) => name !== 'bystander')
    const isOffered = outcome !== null && !(outcome instanceof RegExp)
    if (isOffered) t.match(tool, outcome, label)
    else t.equal(tool, undefined, label)
    if (outcome instanceof RegExp) t.match(left_out, [{ tool: /^(a|n{100}…)$/, problem: outcome }], label)
    else t.same(left_out, [], `${label}: an entry without a usable name is not listed as left out`)
  }
  t.end()
})

t.test('a tool of megabytes is left out without being written down', (t) => {
  let written = 0
  const toJSON = () => ++written
  const inputSchema = { ...object, default: { toJSON }, enum: Array(300_000).fill(1) }
  t.match(repairTools([{ name: 'a', inputSchema }]).left_out, [{ tool: 'a', problem: /larger than/ }])
  t.equal(written, 0)
  repairTools([{ name: 'a', inputSchema: { ...inputSchema, enum: [1] } }])
  t.ok(written > 0)
  t.end()
})

t.test('tool names are unique, and the number and the size of tools are bounded', (t) => {
  const many = Array.from({ length: 1_002 }, (_, index) => ({ name: `t${index}`, inputSchema: object }))
  const second = { name: 't0', inputSchema: { ...object, title: 'second' } }
  const { tools, left_out } = repairTools(many.toSpliced(1, 0, second))
  t.equal(tools.length, 1_000)
  t.equal(tools[0]?.inputSchema.title, undefined, 'the first definition of a name counts')
  const beyond = { problem: /^left out: the server lists more than 1000 tools, or 2097152 bytes/ }
  t.match(left_out, [
    { ...beyond, tool: 't1000' },
    { ...beyond, tool: 't1001' },
  ])
  t.equal(left_out.length, 2)
  const flood = repairTools(
    Array.from({ length: 500_000 }, (_, index) => ({ name: `f${index}`, inputSchema: 0 })),
  )
  t.equal(flood.left_out.length, 2_000, 'a flood of bad entries does not become a flood of reasons')
  const big = Array.from({ length: 50 }, (_, index) => ({ ...many[index], description: 'd'.repeat(200_000) }))
  const large = repairTools(big)
  t.equal(large.tools.length, 10, 'large tools are kept up to a total size')
  t.equal(large.left_out.length, 40, 'and the others are named')
  t.end()
})

t.test('the lists of real servers stay whole, and each tricky tool is offered or explained', (t) => {
  for (const file of readdirSync(FIXTURES)) {
    const content = JSON.parse(readFileSync(new URL(file, FIXTURES), 'utf8'))
    const isTricky = Array.isArray(content)
    const entries: { name: string }[] = isTricky ? content : content.tools
    const { tools, left_out } = repairTools(entries)
    t.ok(tools.every(({ inputSchema }) => inputSchema.type === 'object'))
    if (isTricky) {
      const names = new Set(entries.map(({ name }) => name))
      t.equal(tools.length + left_out.length, names.size, `${file}: every tool is offered or explained`)
      t.ok(left_out.length < 20, `${file}: ${left_out.length} left out`)
    } else {
      // The one only runs as a task, the other is for the server's own pages.
      const offered = entries.filter(({ name }) => !['simulate-research-query', 'ui_get'].includes(name))
      t.same(
        tools.map(({ name }) => name),
        offered.map(({ name }) => name),
        file,
      )
    }
  }
  t.end()
})

t.test('of entries with one name a sound one is the tool, else the last one’s problem is told', (t) => {
  const sound = (name: string) => ({ name, inputSchema: { type: 'object' } })
  const list = (name: string) => ({ name, inputSchema: { type: 'array' } })
  const task = { name: 'bad', execution: { taskSupport: 'required' } }
  const repaired = repairTools([
    sound('first'),
    list('first'),
    list('later'),
    sound('later'),
    list('bad'),
    task,
  ])
  t.strictSame(
    repaired.tools.map(({ name }) => name),
    ['first', 'later'],
  )
  t.match(repaired.left_out, [{ tool: 'bad', problem: /task/ }])
  t.equal(repaired.left_out.length, 1)
  t.end()
})

t.test('the hash of a list ignores the order of tools and keys, and nothing else', async (t) => {
  const a = {
    name: 'a',
    description: 'x',
    inputSchema: { type: 'object', properties: { p: { type: 'string' } } },
  }
  const b = { name: 'b', inputSchema: { type: 'object' } }
  const reordered = {
    inputSchema: { properties: { p: { type: 'string' } }, type: 'object' },
    description: 'x',
    name: 'a',
  }
  const hashOf = async (tools: McpTool[]) => hashTools({ tools, left_out: [] })
  t.equal(await hashOf([a, b]), await hashOf([b, reordered]))
  t.not(await hashOf([a, b]), await hashOf([{ ...a, description: 'y' }, b]))
  t.not(await hashOf([a, b]), await hashOf([{ ...a, annotations: { readOnlyHint: true } }, b]))
  t.not(await hashOf([a]), await hashOf([a, b]))
  t.not(
    await hashOf([a]),
    await hashTools({ tools: [a], left_out: [{ tool: 'b', problem: 'left out: it is' }] }),
    'entries that are left out count',
  )
})

t.test('every kind of content becomes a canonical part', (t) => {
  const { content, is_error } = readResult({
    content: [
      { type: 'text', text: 'hello', annotations: { audience: ['user'] } },
      { type: 'image', data: 'aGVs\nbG8=', mimeType: 'image/webp' },
      { type: 'audio', data: 'aGVsbG8', mimeType: '' },
      { type: 'image', data: '__-_-w==', mimeType: 'image/webp' },
      { type: 'image', data: '__-_-w', mimeType: 'image/webp' },
      { type: 'image', data: 'data:image/webp;charset=x;base64,aGVsbG8=', mimeType: 'image/webp' },
      { type: 'resource', resource: { uri: 'file:///a.txt', text: 'inside' } },
      { type: 'resource', resource: { uri: 'file:///a.gz', blob: 'aGVsbG8=', mimeType: 'application/gzip' } },
      { type: 'resource', resource: { uri: 'file:///a.png', blob: 'aGVsbG8=', mimeType: 'image/png' } },
      { type: 'resource', resource: { uri: 'x:\0\ud800\u200by', blob: 'aGVsbG8=', mimeType: 'Image/png' } },
      { type: 'resource', resource: { uri: 'x'.repeat(500), blob: 'aGVsbG8=', mimeType: 'image/png' } },
      { type: 'resource_link', uri: 'https://example.com/x', name: 'x', description: 'an x' },
    ],
  })
  t.same(content, [
    { type: 'text', text: 'hello' },
    { type: 'image', media_type: 'image/webp', data: 'aGVsbG8=' },
    { type: 'audio', media_type: 'audio/wav', data: 'aGVsbG8=' },
    { type: 'image', media_type: 'image/webp', data: '//+/+w==' },
    { type: 'image', media_type: 'image/webp', data: '//+/+w==' },
    { type: 'image', media_type: 'image/webp', data: 'aGVsbG8=' },
    { type: 'text', text: '[file:///a.txt]\ninside' },
    { type: 'file', media_type: 'application/gzip', data: 'aGVsbG8=', name: 'file:///a.gz' },
    { type: 'image', media_type: 'image/png', data: 'aGVsbG8=', name: 'file:///a.png' },
    { type: 'image', media_type: 'Image/png', data: 'aGVsbG8=', name: 'x:y' },
    { type: 'image', media_type: 'image/png', data: 'aGVsbG8=', name: `${'x'.repeat(397)}…` },
    { type: 'text', text: '[link: https://example.com/x, x, an x]' },
  ])
  t.equal(is_error, false)
  t.end()
})

t.test('unreadable content becomes a note, since the tool has run', (t) => {
  const bad = [
    { type: 'video', data: 'x'.repeat(5_000), mimeType: 'video/mp4' },
    { type: 'image', data: 'no base64!', mimeType: 'image/png' },
    { type: 'image', data: 'abcde', mimeType: 'image/png' },
    { type: 'image', data: 'aGk=aGk=', mimeType: 'image/png' },
    { type: 'image', data: '', mimeType: 'image/png' },
    { type: 'text', text: null },
    { type: 'resource' },
    { type: 'resource', resource: { uri: 'x:y', mimeType: { toString: 1 } } },
    { type: 'resource_link' },
    { type: 'constructor' },
    { type: 'tree', root: JSON.parse(`${'['.repeat(100_000)}${']'.repeat(100_000)}`) },
    7,
    null,
  ]
  const { content } = readResult({ content: [...bad, { type: 'text', text: 'good' }], isError: true })
  t.equal(content.length, bad.length + 1)
  for (const part of content.slice(0, -1)) {
    t.match(part, { type: 'text', text: /^\[unreadable content of type/ })
    t.ok(part.type === 'text' && part.text.length < 2_200, 'a note is short')
  }
  t.same(content.at(-1), { type: 'text', text: 'good' })
  const long = readResult({ content: [{ type: 'list', items: new Array(10_000).fill({}) }] })
  t.match(long.content, [
    { text: '[unreadable content of type list: too many values, or nested too deeply]' },
  ])
  t.end()
})

t.test('of very many items in a result all texts are read, and of the others the first', (t) => {
  const image = { type: 'image', data: 'aGk=', mimeType: 'image/png' }
  const many = Array.from({ length: 70 }, (_, i) => (i % 2 === 0 ? `t${i}` : { type: 'text', text: `t${i}` }))
  const { content } = readResult({ content: [...many, image, 'last', image] })
  t.equal(content.length, 66)
  t.match(content.slice(63), [
    { text: 't63' },
    { text: 't64\n\nt65\n\nt66\n\nt67\n\nt68\n\nt69\n\nlast' },
    { text: '[2 more items are left out]' },
  ])
  t.end()
})

t.test('odd shapes of a result are read as far as they hold content', (t) => {
  t.same(readResult({ content: { type: 'text', text: 'no list' } }).content, [
    { type: 'text', text: 'no list' },
  ])
  t.same(readResult({ content: 'bare' }).content, [{ type: 'text', text: 'bare' }])
  t.same(readResult({ toolResult: 'old' }).content, [{ type: 'text', text: 'old' }])
  t.same(readResult({}), { content: [], is_error: false })
  t.same(readResult(undefined), { content: [], is_error: false })
  t.match(readResult({ celsius: 5, isError: true, _meta: {} }), {
    content: [{ type: 'text', text: '[unreadable content of type unknown: {"celsius":5}]' }],
    is_error: true,
  })
  t.same(readResult({ type: 'text', text: 'no content' }).content, [{ type: 'text', text: 'no content' }])
  t.same(readResult({ content: [], celsius: 5 }).content, [])
  t.same(readResult({ resultType: 'complete', _meta: {} }).content, [])
  t.same(readResult({ structuredContent: [1], isError: 'yes' }), {
    content: [],
    structured: [1],
    is_error: false,
  })
  t.same(readResult({ content: [], structuredContent: null, isError: true }), {
    content: [],
    structured: null,
    is_error: true,
  })
  t.end()
})

function nested(levels: number): object {
  let schema: object = { type: 'string' }
  for (let i = 0; i < levels; i++) schema = { type: 'object', properties: { p: schema } }
  return schema
}
