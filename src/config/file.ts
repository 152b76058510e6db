/**
 * The shape of the YAML file, and how an environment variable reaches into it. Unknown keys are errors.
 * Values stay as they were written here; toolbox.ts and load.ts turn them into the configuration.
 */

import { createRequire } from 'node:module'
import { type Static, type TProperties, type TSchema, Type } from 'typebox'
import type { Document, ParseOptions, YAMLError, Scalar as YamlScalar } from 'yaml'
import { isRecord } from '../chat/json.ts'
import { Duration } from '../duration.ts'
import { knownFields, type Problem } from '../validation.ts'
import { CONNECTOR_NAME } from './connector-shape.ts'
import { LimitsSchema } from './limits.ts'
import { isQuoted, QUOTED } from './readers.ts'
import { PROVIDER_IDS, SETTINGS } from './settings.ts'

const closed = { additionalProperties: false } as const
const Name = Type.String({ minLength: 1, maxLength: 256 })
const Names = Type.Array(Name)
const Scalar = Type.Unsafe<string | number | boolean>({ type: ['string', 'number', 'boolean'] })
const Pairs = Type.Record(Type.String(), Scalar, { description: 'Write each as NAME: value' })
const Instances = Type.Integer({ minimum: 1, maximum: 10_000 })
const Approval = Type.Enum(['never', 'always', 'destructive'])

const TOOL_ITEM = 'Write each tool as an item: - name: server.tool'
const ToolSchema = Type.Object(
  {
    name: Name,
    max_instances: Type.Optional(Instances),
    timeout: Type.Optional(Duration),
    require_approval: Type.Optional(Approval),
  },
  { ...closed, description: TOOL_ITEM },
)

const MCP_ITEM = 'Write each server as an item: - name: docs'
const McpSchema = Type.Object(
  {
    name: Type.String(CONNECTOR_NAME),
    transport: Type.Enum(['streamable_http', 'sse', 'stdio']),
    // The same lengths as in the API.
    url: Type.Optional(Type.String({ minLength: 1, maxLength: 8192 })),
    command: Type.Optional(Type.String({ minLength: 1, maxLength: 4096 })),
    args: Type.Optional(Type.Array(Scalar, { description: 'Write one item for each argument' })),
    env: Type.Optional(Pairs),
    headers: Type.Optional(Pairs),
    mode: Type.Enum(['strict', 'dynamic'], {
      description:
        'Strict allows only what toolbox.tools names; dynamic, with default_tool_config, takes what the server offers',
    }),
    default_tool_config: Type.Optional(
      Type.Object({ max_instances: Type.Optional(Instances), timeout: Type.Optional(Duration) }, closed),
    ),
    // Taken and ignored: Baton offers no prompts.
    prompts: Type.Optional(Names),
    bind: Type.Optional(Type.Enum(['auto', 'manual'])),
    allow_tools: Type.Optional(Names),
    deny_tools: Type.Optional(Names),
    require_approval: Type.Optional(Approval),
    trust_annotations: Type.Optional(Type.Boolean()),
    pin: Type.Optional(Type.Enum(['warn', 'block'])),
  },
  { ...closed, description: MCP_ITEM },
)

const ToolboxSchema = Type.Object(
  {
    max_concurrent: Type.Optional(Instances),
    tools: Type.Optional(Type.Array(ToolSchema, { description: TOOL_ITEM })),
    mcps: Type.Optional(Type.Array(McpSchema, { description: MCP_ITEM })),
    inspect: Type.Optional(Type.Boolean()),
  },
  closed,
)

const ProviderSchema = Type.Object(
  {
    oauth: Type.Optional(
      Type.Object(
        {
          system_blocks: Type.Optional(Type.Array(Type.String({ minLength: 1 }))),
          headers: Type.Optional(Pairs),
        },
        closed,
      ),
    ),
  },
  closed,
)

/** A setting's value in the file: one value, or a list if the variable takes commas. */
const SettingValue = Type.Unsafe<string | number | boolean | (string | number | boolean)[]>({
  type: ['string', 'number', 'boolean', 'array'],
  items: Scalar,
})

/** The whole file: every setting of the table, and what only the file has. */
export const FileSchema = Type.Object(
  {
    ...optional(Object.keys(SETTINGS), SettingValue),
    toolbox: Type.Optional(ToolboxSchema),
    providers: Type.Optional(Type.Object(optional(PROVIDER_IDS, ProviderSchema), closed)),
    limits: Type.Optional(LimitsSchema),
  },
  closed,
)

function optional(names: readonly string[], schema: TSchema): TProperties {
  return Object.fromEntries(names.map((name) => [name, Type.Optional(schema)]))
}

/** The file after it has passed FileSchema. */
export interface FileContent {
  toolbox?: Static<typeof ToolboxSchema>
  providers?: Record<string, Static<typeof ProviderSchema>>
  limits?: Static<typeof LimitsSchema>
}

/** Most installations have no file, and need not wait for its parser. */
const loadYaml = () => createRequire(import.meta.url)('yaml') as typeof import('yaml')

/** Parses YAML 1.2. Problems name the line, never its text: it may hold a secret. */
export function parseYaml(name: string, source: string): { value: unknown; problems: Problem[] } {
  const { LineCounter } = loadYaml()
  const lines = new LineCounter()
  const document = documentOf(source, { lineCounter: lines, prettyErrors: false })
  const problems = mistakesIn(document).map(({ code, pos }) => {
    const { line, col } = lines.linePos(pos[0])
    const [problem, remedy] =
      code === UNKNOWN_TAG
        ? ['has a tag (!name), which Baton does not know', 'Put a text that begins with ! in quotes']
        : [
            `is not valid YAML (${code.toLowerCase().replaceAll('_', ' ')})`,
            'Check indentation, quotes and repeated keys',
          ]
    return { path: `${name}:${line}:${col}`, problem, remedy }
  })
  if (problems.length > 0) return { value: {}, problems }
  const value = resolved(document)
  if (isRecord(value)) return { value, problems }
  const [problem, remedy] =
    value === undefined
      ? [
          'has an alias (*name) without its anchor, or one that stands for too much or for itself',
          'Put a text that begins with * in quotes',
        ]
      : ['must be a map of settings', 'Write each as name: value']
  return { value: {}, problems: [{ path: name, problem, remedy }] }
}

/** A warning about a key that is a map would show the key, in which a secret may stand. */
const documentOf = (source: string, options: ParseOptions = {}): Document =>
  loadYaml().parseDocument(source, { ...options, logLevel: 'error' })

const UNKNOWN_TAG = 'TAG_RESOLVE_FAILED'

interface Mistake extends Pick<YAMLError, 'pos'> {
  code: string
}

/** The parser would take `!vault key` for the text `key`, with a mere warning. */
const mistakesIn = (document: Document): Mistake[] => [
  ...(document.errors.length > 0 ? document.errors : unspaced(document)),
  ...document.warnings.filter(({ code }) => code === UNKNOWN_TAG),
]

/** In `{admin_key:secret}` all is one name, which would be shown as unknown. */
function unspaced(document: Document): Mistake[] {
  const found: Mistake[] = []
  loadYaml().visit(document, {
    Pair: (_, { key, value }) => {
      const { value: name, range } = key as YamlScalar
      if (value === null && typeof name === 'string' && name.includes(':') && range)
        found.push({ code: 'NO_BLANK_AFTER_A_COLON', pos: [range[0], range[1]] })
    },
  })
  return found
}

/** Undefined if aliases do not resolve. That shows only here, as a throw, which may be a stack overflow. */
function resolved(document: Document): unknown {
  try {
    return withoutNulls(contentOf(document) ?? {})
  } catch {
    return undefined
  }
}

/** `key`: of the document as a whole. Throws if it is not valid YAML, or its aliases do not resolve. */
function contentOf(document: Document, key?: string | number): unknown {
  const [mistake] = mistakesIn(document)
  if (mistake) throw new Error(mistake.code)
  const { visit, isPair } = loadYaml()
  visit(document, {
    Scalar(_, node, parents) {
      const keys = parents.filter(isPair).map((pair) => (pair.key as YamlScalar).value)
      keepAsWritten(node, [key, ...keys].some(isOfTexts))
    },
  })
  return document.toJS()
}

/** Whether all values below the key become texts. */
const isOfTexts = (key: unknown): boolean => key === 'args' || key === 'env' || key === 'headers'

/**
 * Keeps `2.0`, `0012`, numbers of 20 digits, and a program's `True`, as texts: read and written again, a key, a header
 * or a variable would become another one.
 */
function keepAsWritten(node: YamlScalar, isText: boolean): void {
  const isRead = typeof node.value === 'number' || (isText && typeof node.value === 'boolean')
  if (isRead && String(node.value) !== node.source) node.value = node.source
}

/** A key without a value (`tools:`) is as good as absent, but its name must be a known one. */
function withoutNulls(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutNulls)
  if (!isRecord(value)) return value
  const items = Object.entries(value).map(([key, item]) => [
    key,
    item === null ? undefined : withoutNulls(item),
  ])
  return Object.fromEntries(items)
}

type Schema = Record<string, unknown>

/**
 * Sets one value of the file from a variable such as `BATON__TOOLBOX__MCPS__0__MODE`: in upper case, `__` between
 * levels, items of lists by their place. The schema says what is a list, what is text and how a key is written. Returns
 * the path that was set, or why there is no such place.
 */
export function override(root: Record<string, unknown>, name: string, text: string): string | Problem {
  const steps = name.slice('BATON__'.length).split('__')
  let schema: Schema = { ...FileSchema }
  let at: unknown = root
  let path = ''
  for (const [i, step] of steps.entries()) {
    const found = Array.isArray(at) ? item(schema, at, step) : isRecord(at) ? member(schema, at, step) : null
    if (!found) {
      const place = path === '' ? 'the file' : path
      const remedy = Array.isArray(at) ? `Items count from 0, and it has ${at.length}` : knownFields(schema)
      return { path: name, problem: `names no setting: '${step}' does not fit in ${place}`, remedy }
    }
    path = typeof found.key === 'number' ? `${path}[${found.key}]` : path ? `${path}.${found.key}` : found.key
    schema = found.schema
    const container = at as Record<string | number, unknown>
    const isLast = i === steps.length - 1
    if (isLast && takesText(schema) && isQuoted(text)) return { path: name, ...QUOTED }
    if (isLast) container[found.key] = fitted(found, text)
    else container[found.key] ??= typeNames(schema).includes('object') ? {} : []
    at = container[found.key]
  }
  return path
}

interface Found {
  key: string | number
  schema: Schema
}

function item(schema: Schema, list: unknown[], step: string): Found | null {
  const place = /^\d{1,4}$/.test(step) ? Number(step) : -1
  return place >= 0 && place <= list.length && isRecord(schema.items)
    ? { key: place, schema: schema.items }
    : null
}

function member(schema: Schema, map: Record<string, unknown>, step: string): Found | null {
  const known = isRecord(schema.properties) ? schema.properties[step.toLowerCase()] : undefined
  if (isRecord(known)) return { key: step.toLowerCase(), schema: known }
  // A map of free names: the name that the file has already (x-api-key for X_API_KEY), else as the variable has it.
  const pattern = isRecord(schema.patternProperties) ? Object.values(schema.patternProperties)[0] : undefined
  if (!isRecord(pattern) || step === '') return null
  const plain = (key: string) => key.toUpperCase().replaceAll('-', '_')
  const key = Object.keys(map).find((existing) => plain(existing) === plain(step)) ?? step
  return { key, schema: pattern }
}

const typeNames = (schema: Schema): unknown[] =>
  Array.isArray(schema.type) ? schema.type : [schema.type ?? 'string']

const takesText = (schema: Schema): boolean =>
  typeNames(schema).includes('string') || Array.isArray(schema.enum)

/** Text stays text if the schema takes text; a list may be written with commas; everything else is YAML. */
function fitted({ key, schema }: Found, given: string): unknown {
  if (takesText(schema)) return given
  // An env file may have kept the quotes around the whole.
  const text = /^(["'])((?:(?!\1).)*)\1$/s.exec(given)?.[2] ?? given
  let value: unknown = text
  try {
    value = contentOf(documentOf(text), key)
  } catch {
    // `*_delete, old_*` begins like an alias and is none. Unbalanced brackets and quotes stay a mistake, so the text
    // stays text.
    if (/^\s*[[{"']/.test(text)) return text
  }
  if (!typeNames(schema).includes('array') || Array.isArray(value)) return value
  return text.split(',').map((part) => part.trim())
}
