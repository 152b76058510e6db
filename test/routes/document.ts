/** The OpenAPI document, and answers held against it. */
import { Ajv2020 } from 'ajv/dist/2020.js'
import type { LightMyRequestResponse } from 'fastify'
import type { App } from '../../routes/app.ts'

export interface Operation {
  summary?: string
  tags?: string[]
  operationId: string
  parameters?: { name: string; in: 'path' | 'query' | 'header'; schema: Schema }[]
  requestBody?: {
    required?: boolean
    content: { 'application/json'?: { schema: Schema; example?: unknown; examples?: unknown } }
  }
  responses: Record<
    string,
    { description?: string; content?: Record<string, unknown>; headers?: Record<string, unknown> }
  >
  security?: unknown[]
}
/** What the tests read of a schema. */
export interface Schema {
  $ref?: string
  type?: string | string[]
  properties?: Record<string, Schema>
  required?: string[]
  items?: Schema
  oneOf?: Schema[]
  anyOf?: Schema[]
  enum?: unknown[]
}
export interface Document {
  paths: Record<string, Record<string, Operation>>
  components: { schemas: Record<string, Record<string, unknown>> }
}

/** Closes every object of the document, so that a field that it does not name is found. */
function closed(schema: unknown, open = false): unknown {
  if (Array.isArray(schema)) return schema.map((item) => closed(item))
  if (typeof schema !== 'object' || schema === null) return schema
  const copy: Record<string, unknown> = {}
  for (const [key, value] of Object.entries(schema)) {
    copy[key] = key === 'examples' || key === 'example' ? value : closed(value, key === 'allOf')
  }
  if (copy.properties && copy.additionalProperties === undefined && !open) copy.additionalProperties = false
  return copy
}

/** Headers that tell a client something about what it asked for */
const TELLING = [
  'x-request-id',
  'Location',
  'x-baton-turn',
  'Idempotent-Replayed',
  'Retry-After',
  'WWW-Authenticate',
]

/**
 * Holds an answer against the document: throws for an undocumented status, header, field or code of an error. `body`:
 * only of a JSON answer.
 */
export function documented(document: Document) {
  const ajv = new Ajv2020({ strict: false, validateFormats: false, code: { optimize: false } })
  ajv.addSchema(closed(document) as object, 'api')
  const paths = Object.keys(document.paths).map((path) => ({
    path,
    pattern: new RegExp(`^${path.replace(/[.]/g, '\\.').replace(/\{[^}]+\}/g, '[^/]+')}$`),
    params: path.split('{').length,
  }))
  paths.sort((a, b) => a.params - b.params)
  return (
    method: string,
    url: string,
    status: number,
    body: unknown,
    headers: LightMyRequestResponse['headers'],
  ): void => {
    const plain = url.split('?', 1)[0] ?? ''
    const path = paths.find(({ pattern }) => pattern.test(plain))?.path
    const operation = path === undefined ? undefined : document.paths[path]?.[method.toLowerCase()]
    const pointer = (steps: string[]) =>
      `api#/${steps.map((step) => encodeURIComponent(step.replaceAll('~', '~0').replaceAll('/', '~1'))).join('/')}`
    const known = operation?.responses[String(status)]
    const named = (known ?? operation?.responses.default)?.headers ?? {}
    const untold = TELLING.find((name) => headers[name.toLowerCase()] !== undefined && !named[name])
    if (operation && untold) throw new Error(`${method} ${path}: ${untold} is not documented for ${status}`)
    if (body === undefined) return
    if (operation && status < 300 && !known) throw new Error(`${method} ${path}: ${status} is not documented`)
    const { description = '' } = known ?? operation?.responses.default ?? {}
    const code = status < 400 ? undefined : (body as { error?: { code?: string } }).error?.code
    if (operation && code !== undefined && !description.includes(`\`${code}\``))
      throw new Error(`${method} ${path}: ${code} is not documented`)
    if (known?.content && !known.content['application/json'])
      throw new Error(`${method} ${path}: JSON is not documented for ${status}`)
    const ref = known?.content?.['application/json']
      ? pointer([
          'paths',
          path ?? '',
          method.toLowerCase(),
          'responses',
          String(status),
          'content',
          'application/json',
          'schema',
        ])
      : pointer(['components', 'schemas', 'Error'])
    const check = ajv.getSchema(ref) ?? ajv.compile({ $ref: ref })
    if (check(body)) return
    throw new Error(`${method} ${url} → ${status} does not fit the document: ${ajv.errorsText(check.errors)}`)
  }
}

export interface Answer {
  status: number
  headers: LightMyRequestResponse['headers']
  // biome-ignore lint/suspicious/noExplicitAny: the tests look into answers of every shape
  body: any
  text: string
}

/** Injects requests, and holds each answer against the document. */
export const calling =
  (http: App, conforms: ReturnType<typeof documented>) =>
  async (method: string, url: string, body: unknown, given: Record<string, string>): Promise<Answer> => {
    const answer = await http.inject({
      method: method as 'GET',
      url,
      headers: given,
      ...(body === undefined ? {} : { payload: body as object }),
    })
    const { statusCode: status, headers, body: text } = answer
    const isJson = method !== 'HEAD' && String(headers['content-type']).startsWith('application/json')
    const parsed = isJson ? answer.json() : undefined
    conforms(method, url, status, parsed, headers)
    return { status, headers, body: parsed, text }
  }
