/** The rules for tools of the wire page (wire/gemini.md 5), each enforced by a refusal. */
import t from 'tap'
import { declare, emulate, hi, post, READ, type Refused, refuses } from './gemini-requests.ts'

/** A tool whose one argument has this schema, as the OpenAPI subset. */
const parameter = (a: object, more: object = {}) =>
  declare({ name: 'f', parameters: { type: 'OBJECT', properties: { a }, ...more } })
const withSearch = { ...hi, tools: [{ functionDeclarations: [READ] }, { googleSearch: {} }] }

const REFUSED: readonly Refused[] = [
  ['a name with a space', declare({ name: 'read file' }), /Invalid function name/],
  ['a name of 65 characters', declare({ name: 'x'.repeat(65) }), /maximum length of 64/],
  ['the same tool name twice', declare(READ, READ), /Duplicate function declaration found: files__read/],
  [
    '513 declarations',
    declare(...Array.from({ length: 513 }, (_, i) => ({ name: `f${i}` }))),
    /At most 512 function declarations/,
  ],
  ['both kinds of schema', declare({ ...READ, parameters: { type: 'OBJECT' } }), /mutually exclusive/],
  [
    'a JSON Schema keyword in parameters',
    declare({ name: 'f', parameters: { type: 'OBJECT', properties: { a: { $ref: '#/$defs/a' } } } }),
    /Unknown name "\$ref" at 'tools\[0\]\.function_declarations\[0\]\.parameters\.properties\[a\]'/,
  ],
  ['two types at once', parameter({ type: ['STRING', 'NULL'] }), /type.*cannot start list/],
  ['a type that does not exist', parameter({ type: 'INT' }), /\.type' \(TYPE_ENUM\), "INT"/],
  [
    'no type',
    parameter({ description: 'a' }),
    /properties\[a\]: schema didn't specify the schema type field/,
  ],
  [
    'a type beside alternatives',
    parameter({ type: 'STRING', anyOf: [{ type: 'STRING' }] }),
    /any_of, it must be the only field set/,
  ],
  ['a list of anything', parameter({ type: 'ARRAY' }), /properties\[a\]\.items: missing field/],
  ['a number among names', parameter({ type: 'STRING', enum: [1] }), /enum\[0\]' \(TYPE_STRING\), 1/],
  ['names of a number', parameter({ type: 'INTEGER', enum: ['1'] }), /enum: only allowed for STRING/],
  ['an empty name', parameter({ type: 'STRING', enum: ['a', ''] }), /enum\[1\]: cannot be empty/],
  ['a format of its own', parameter({ type: 'STRING', format: 'uri' }), /only 'enum' and 'date-time'/],
  [
    'a required argument that there is not',
    parameter({ type: 'STRING' }, { required: ['a', 'b'] }),
    /parameters\.required\[1\]: property is not defined/,
  ],
  [
    'a fault deep in a schema',
    parameter({ anyOf: [{ type: 'ARRAY', items: { type: 'ARRAY' } }] }),
    /properties\[a\]\.any_of\[0\]\.items\.items: missing field/,
  ],
  [
    'words beside a reference',
    declare({
      name: 'f',
      parametersJsonSchema: {
        type: 'object',
        properties: { a: { anyOf: [{ $ref: '#/$defs/b', description: 'b' }] } },
        $defs: { b: { type: 'string' } },
      },
    }),
    /parameters_json_schema: \$ref cannot have other keywords/,
  ],
  [
    'lists that may be long',
    declare({
      name: 'f',
      parametersJsonSchema: {
        type: 'object',
        properties: Object.fromEntries(
          ['a', 'b'].map((key) => [key, { type: 'array', items: { type: 'string' }, maxItems: 500 }]),
        ),
      },
    }),
    /^Request contains an invalid argument\.$/,
  ],
  ['Google’s own tools beside functions', withSearch, /include_server_side_tool_invocations/],
  ['the same for an older model', withSearch, /Tool use with function calling/, 'gemini-2.5-flash'],
  [
    'a schema that describes no object',
    declare({ name: 'f', parametersJsonSchema: { type: 'string' } }),
    /describe an object/,
  ],
  [
    'allowed names in mode AUTO',
    { ...declare(READ), toolConfig: { functionCallingConfig: { allowedFunctionNames: ['files__read'] } } },
    /only be set when mode is ANY/,
  ],
  [
    'an allowed name that is not declared',
    { ...declare(READ), toolConfig: { functionCallingConfig: { mode: 'ANY', allowedFunctionNames: ['f'] } } },
    /Allowed function name f/,
  ],
  [
    'mode ANY without tools',
    { ...hi, toolConfig: { functionCallingConfig: { mode: 'ANY' } } },
    /needs a function/,
  ],
]

t.test('a request whose tools break a rule of the wire page is refused in Google’s words', async (t) => {
  await refuses(t, await emulate(t), REFUSED)
})

t.test('schemas of either kind and Google’s own tools are accepted where they keep the rules', async (t) => {
  const emulator = await emulate(t)
  const passes = async (body: object) => {
    const passed = await post(`${emulator.publicBaseUrl}/models/gemini-3.8-flash:generateContent`, body)
    t.equal(passed.status, 200, await passed.text())
  }
  await passes(
    parameter(
      {
        anyOf: [
          { type: 'array', items: { type: 'STRING', format: 'date-time' } },
          { type: 'string', enum: ['a'], nullable: true },
        ],
      },
      { required: ['a'] },
    ),
  )
  const $ref = { type: 'string', description: 'An argument, no reference' }
  const parametersJsonSchema = {
    type: 'object',
    properties: { $ref, a: { $ref: '#/$defs/a' } },
    $defs: { a: { const: 1 } },
  }
  await passes(declare({ name: 'f', parametersJsonSchema }))
  await passes({ ...withSearch, toolConfig: { includeServerSideToolInvocations: true } })
})
