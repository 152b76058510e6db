/**
 * Schemas that several resources share. A schema with a title becomes a named component of the OpenAPI document
 * (src/http/openapi.ts); what it says is api.md's contract.
 */
import { type Static, type TObject, type TProperties, type TSchema, Type } from 'typebox'
import type { Part as StoredPart } from '../src/chat/message.ts'
import { PROVIDER_IDS } from '../src/config/settings.ts'
import { SECRET_FORM } from '../src/credentials/logins/file.ts'
import { ERROR_CODES, errorList } from '../src/errors.ts'

export const closed = { additionalProperties: false } as const

// ---------------------------------------------------------------- small ones

/** Text that is stored as text: anything but NUL, which PostgreSQL cannot store. */
export const text = (min: number, max: number, description?: string) =>
  Type.String({
    minLength: min,
    maxLength: max,
    pattern: '^[^\\u0000]*$',
    ...(description ? { description } : {}),
  })

export const nullable = <S extends TSchema>(schema: S) => {
  const { type, enum: values } = schema as { type?: unknown; enum?: unknown[] }
  return Type.Unsafe<Static<S> | null>({
    ...schema,
    ...(type === undefined ? {} : { type: [type, 'null'] }),
    ...(values === undefined ? {} : { enum: [...values, null] }),
  })
}

export const Provider = Type.Unsafe<string>({
  type: 'string',
  enum: [...PROVIDER_IDS],
  description: 'Whose model answers',
})
/**
 * A name read from a file with its line break would be refused by the provider, in an error that hides the line break.
 */
export const Model = Type.String({
  ...text(1, 256, 'The model, by the name that its provider gives it, without spaces around it'),
  pattern: '^[^\\s\\u0000]+( [^\\s\\u0000]+)*$',
})
export const Instant = Type.String({ format: 'date-time' })
export const Id = Type.String({ minLength: 1, maxLength: 512 })
export const Flag = Type.Boolean()
export const Count = Type.Integer({ minimum: 0 })
/** Any JSON object. Explicit, since client generators would otherwise make a type without fields. */
const anything = { type: 'object', additionalProperties: true } as const
export const Json = Type.Unsafe<Record<string, unknown>>(anything)
export const NoBody = Type.Object({}, closed)

export const idParams = <K extends string>(...names: K[]) =>
  Type.Object(Object.fromEntries(names.map((name) => [name, Id])) as Record<K, typeof Id>)
export const IdParam = Type.Object({ id: Id })

/** Query of a list. */
export const paging = {
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000, description: 'Default 100' })),
  cursor: Type.Optional(Type.String({ maxLength: 1024, description: '`next_cursor` of the page before' })),
}
export const Paging = Type.Object(paging, closed)
export const pageOf = ({ limit = 100, cursor }: Static<typeof Paging>) => ({ limit, cursor })

/** A key, a token or the secret of a client */
export const Secret = Type.String(SECRET_FORM)

export const Transport = Type.Enum(['streamable_http', 'sse', 'stdio'])

/** An HTML response, for a browser that comes back from a login */
export const PAGE = {
  description: 'A page for people',
  content: { 'text/html': { schema: { type: 'string' } } },
}

const returned = (options = {}) => Type.Optional(Type.String({ maxLength: 16_384, ...options }))
/** Query that a login's page comes back with; some vendors add fields of their own. */
export const LoginReturn = Type.Unsafe<Record<string, string>>(
  Type.Object(
    {
      state: returned(),
      code: returned(),
      error: returned(),
      error_description: returned(),
      iss: returned({ description: 'Who answers (RFC 9207); another issuer than the one asked is refused' }),
    },
    { additionalProperties: Type.String({ maxLength: 16_384 }) },
  ),
)

/** The fields of a row that the schema has; everything else stored in the row stays inside. */
export const shownBy = <P extends TProperties>(
  { properties }: TObject<P>,
  row: { readonly [Name in keyof P]?: unknown },
) => Object.fromEntries(Object.keys(properties).map((name) => [name, row[name]]))

/** A page of a list: newest first, unless its route says otherwise. */
export const listOf = (item: TSchema) =>
  Type.Object({ data: Type.Array(item), next_cursor: nullable(Type.String()) })

export const Metadata = Type.Unsafe<Record<string, unknown>>({
  ...anything,
  maxProperties: 100,
  description: 'Whatever the caller wants to keep with it: up to 100 fields and 16 KiB of JSON',
})

const countOf = (what: string) => Type.Integer({ minimum: 0, description: what })
export const Usage = Type.Object(
  {
    input_tokens: Count,
    output_tokens: Count,
    reasoning_tokens: countOf('A part of `output_tokens`'),
    cached_tokens: countOf('A part of `input_tokens`'),
  },
  { title: 'Usage' },
)

const failure = {
  code: Type.Enum(ERROR_CODES, {
    title: 'ErrorCode',
    description: `Stable. With the HTTP status:\n\n${errorList(ERROR_CODES)}`,
  }),
  message: Type.String(),
  param: nullable(Type.String({ description: 'The field at fault' })),
  details: Type.Optional(Json),
}
/** Why a turn failed: the error that its caller would have got. */
export const Failure = Type.Object(failure)
export const ErrorShape = Type.Object(
  { error: Type.Object({ ...failure, details: Json, request_id: Type.String() }) },
  {
    title: 'Error',
    examples: [
      {
        error: {
          code: 'session_not_found',
          message: 'No session ses_0 exists.',
          param: null,
          details: {},
          request_id: 'req_01j9z',
        },
      },
    ],
  },
)

export const PAGE_OR_ERROR = {
  description: 'A page for people; or `invalid_request`, if the call does not come back from a login',
  content: { ...PAGE.content, 'application/json': { schema: ErrorShape } },
}

/** A union discriminated by one field: precise errors, and a discriminator in the document. */
export function taggedBy<const T extends TObject[]>(tag: string, title: string, ...branches: T) {
  return Type.Unsafe<Static<T[number]>>({
    type: 'object',
    title,
    discriminator: { propertyName: tag },
    required: [tag],
    oneOf: branches,
  })
}

export const Apply = Type.Optional(
  Type.Enum(['next', 'now'], {
    description:
      '`next` (default): from the next request to the provider on; `now`: restarts the step in flight',
  }),
)

const Names = Type.Array(Type.String(), { description: 'Canonical names' })
/** The fields of a change of a session's tools, as its call answers and its event tells */
export const toolsDelta = { tools_revision: Count, added: Names, removed: Names, changed: Names }

// ---------------------------------------------------------------- parts and messages

const Provenance = Type.Object(
  {
    provider: text(1, 64),
    model: text(1, 256),
    credential_id: nullable(text(1, 512)),
    opaque: Type.Optional(
      Type.String({ description: "A signature or encrypted reasoning, the provider's own" }),
    ),
    prefix: Type.Optional(
      Type.String({ description: 'Hash of what the model had been given when it made `opaque`' }),
    ),
  },
  {
    ...closed,
    title: 'Provenance',
    description: 'Where an assistant part came from',
    examples: [{ provider: 'anthropic', model: 'claude-opus-5-5', credential_id: 'cred_01j9z' }],
  },
)
const provenance = { provenance: Type.Optional(Provenance) }

/** The example is for pages made from the document: they would invent their own, and make noise from a pattern. */
const part = <const K extends string, P extends TProperties>(type: K, fields: P, example?: object) =>
  Type.Object(
    { type: Type.Literal(type), ...fields },
    { ...closed, ...(example && { examples: [{ type, ...example }] }) },
  )

/** `known`: media types to name */
const media = <const K extends string>(type: K, family: string, ...known: string[]) =>
  part(
    type,
    {
      media_type: Type.String({
        maxLength: 128,
        // With parameters, as HTTP and browsers write the type of a text.
        pattern: `^${family}/[A-Za-z0-9][A-Za-z0-9.+-]*( *; *[A-Za-z0-9.+-]+=([A-Za-z0-9.+_-]+|"[^"]*"))*$`,
        description: `Such as ${known.join(' or ')}`,
      }),
      data: Type.Optional(Type.String({ format: 'byte', minLength: 4, description: 'Base64; or `url`' })),
      url: Type.Optional(Type.String({ maxLength: 8192, description: 'http or https; or `data`' })),
      name: Type.Optional(text(1, 256)),
    },
    { media_type: known[0], data: 'AAAA' },
  )

const Text = part('text', { text: Type.String(), ...provenance })
const PlainText = part('text', { text: Type.String() })
const Image = media('image', 'image', 'image/png')
const Audio = media('audio', 'audio', 'audio/wav')
const File = media('file', '[a-z]+', 'application/pdf', 'text/plain; charset=utf-8')
const Notice = part('notice', { text: Type.String() })

const CallId = Type.String({ minLength: 1, maxLength: 256 })
const ToolName = Type.String({ ...text(1, 512), examples: ['files.read_file'] })

export const ContentPart = taggedBy('type', 'ContentPart', PlainText, Image, Audio, File)
const Reasoning = part('reasoning', { text: Type.String(), provenance: Provenance })
const ToolCall = part('tool_call', {
  call_id: CallId,
  name: ToolName,
  arguments: Json,
  arguments_text: Type.Optional(
    Type.String({
      description:
        'What the model wrote, if that cannot be passed on: `arguments` is {}, and the call is not run',
    }),
  ),
  ...provenance,
})
export const Outcome = Type.Enum(['ok', 'error', 'cancelled', 'denied', 'outcome_unknown'])
export const StepFinish = Type.Enum(['stop', 'length', 'tool_calls', 'refusal', 'error'])
export const TurnFinish = Type.Enum(['stop', 'length', 'refusal', 'max_steps'])
const toolResult = {
  call_id: CallId,
  name: ToolName,
  content: Type.Array(ContentPart, { maxItems: 1000 }),
  structured: Type.Optional(Type.Unknown({ description: "The tool's `structuredContent`" })),
  spill: Type.Optional(
    Type.Object(
      { exec_id: Id, bytes: Count },
      { ...closed, description: 'Where the whole output is: `GET /v1/tool-executions/{exec_id}/output`' },
    ),
  ),
}
const ToolResult = part('tool_result', { ...toolResult, is_error: Flag, outcome: Outcome })
/** A caller may leave out the fields that follow from the others. */
const GivenToolResult = part('tool_result', {
  ...toolResult,
  is_error: Type.Optional(Flag),
  outcome: Type.Optional(Outcome),
})

const parts = {
  text: Text,
  reasoning: Reasoning,
  tool_call: ToolCall,
  tool_result: ToolResult,
  image: Image,
  audio: Audio,
  file: File,
  notice: Notice,
} satisfies Record<StoredPart['type'], TObject>
export const Part = taggedBy('type', 'Part', ...Object.values(parts))
const GivenPart = taggedBy('type', 'GivenPart', ...Object.values({ ...parts, tool_result: GivenToolResult }))
export const GivenParts = Type.Array(GivenPart, {
  maxItems: 1000,
  description: "One at least; an assistant's message may have none",
})
export const Role = Type.Enum(['user', 'assistant', 'tool', 'system'])

export const Message = Type.Object(
  {
    id: Id,
    session_id: Id,
    turn_id: nullable(Id),
    seq: Type.Integer(),
    role: Role,
    parts: Type.Array(Part),
    incomplete: Type.Optional(
      Type.Boolean({ description: 'If true, its turn was cancelled while this was being written' }),
    ),
    created_at: Instant,
  },
  { title: 'Message' },
)
export const GivenMessage = Type.Object(
  { role: Role, parts: GivenParts },
  {
    ...closed,
    title: 'GivenMessage',
    examples: [{ role: 'user', parts: [{ type: 'text', text: 'What is in this folder?' }] }],
  },
)

/** A turn's input: text, or parts of text and media. */
export const Input = Type.Unsafe<string | Static<typeof ContentPart>[]>({
  anyOf: [
    { type: 'string', minLength: 1 },
    { type: 'array', items: ContentPart, minItems: 1, maxItems: 1000 },
  ],
  description: 'Text, or a list of parts',
})

const Place = Type.Integer({
  minimum: -1_000_000,
  maximum: 1_000_000,
  description: 'Counts the messages of the history; negative from the end',
})
export const ContextEdits = Type.Array(
  taggedBy(
    'op',
    'ContextEdit',
    Type.Object(
      {
        op: Type.Enum(['insert_before', 'insert_after', 'replace_at']),
        index: Place,
        message: GivenMessage,
      },
      closed,
    ),
    Type.Object({ op: Type.Literal('delete_at'), index: Place }, closed),
  ),
  { maxItems: 10_000, description: "Edits of the history for this turn's requests only, applied in order" },
)
export type GivenEdit = Static<typeof ContextEdits>[number]

export const ModelSettings = Type.Object(
  {
    temperature: Type.Optional(Type.Number({ minimum: 0, maximum: 2 })),
    top_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
    max_output_tokens: Type.Optional(Type.Integer({ minimum: 1, maximum: 10_000_000 })),
    reasoning: Type.Optional(
      Type.Object(
        {
          effort: Type.Optional(Type.Enum(['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'])),
        },
        { ...closed, description: 'Such as {"effort": "high"}' },
      ),
    ),
    tool_choice: Type.Optional(
      Type.Unsafe<'auto' | 'none' | 'required' | { name: string }>({
        anyOf: [
          { type: 'string', enum: ['auto', 'none', 'required'] },
          Type.Object({ name: ToolName }, closed),
        ],
        description: 'Takes auto, none, required, or {name} of one tool, canonical or as models see it',
      }),
    ),
    parallel_tool_calls: Type.Optional(Flag),
  },
  { ...closed, title: 'ModelSettings' },
)
