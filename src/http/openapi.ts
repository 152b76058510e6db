/** The OpenAPI 3.1 document, made from the routes' own schemas, and the page that shows it. */
import swagger from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import type { FastifyReply } from 'fastify'
import type { App } from '../../routes/app.ts'
import { Json } from '../../routes/schemas.ts'
import { isRecord } from '../chat/json.ts'
import { once } from '../chat/once.ts'
import { VERSION } from '../version.ts'
import { failuresOf } from './failures.ts'
import { needsField, type Wanting } from './validation.ts'

const DESCRIPTION =
  'An HTTP gateway that keeps one conversation and hands it to any model. ' +
  'Every list is newest first (messages ascend by `seq`); ids sort by time; times are RFC 3339 in UTC.'

/**
 * The page may load its own files and ask this gateway, nothing else. The plugin's own policy asks for https, which may
 * not be there.
 */
const PAGE_POLICY = {
  'default-src': "'none'",
  'base-uri': "'none'",
  'connect-src': "'self'",
  'font-src': "'self' data:",
  'form-action': "'none'",
  'frame-ancestors': "'none'",
  'img-src': "'self' data:",
  'script-src': "'self'",
  'style-src': "'self'",
}

/** Call it before any route is added: routes are collected as they are registered. */
export async function useOpenApi(app: App): Promise<void> {
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Baton',
        version: VERSION,
        description: DESCRIPTION,
        license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
      },
      servers: [{ url: '/', description: 'This gateway' }],
      components: {
        securitySchemes: {
          bearer: { type: 'http', scheme: 'bearer', description: 'A gateway key, bk_…' },
          header: { type: 'apiKey', in: 'header', name: 'x-api-key' },
        },
      },
    },
    transformObject: (document) => named('openapiObject' in document ? document.openapiObject : {}),
  })
  app.addHook('onRoute', ({ schema, method, url, config }) => {
    if (!schema || schema.hide || method === 'HEAD') return
    schema.response = { ...failuresOf(url, schema), ...(schema.response as object) }
    // The routes of a noun get the noun's tag in place of it (src/http.ts).
    schema.tags = ['operation']
    const needsKey = url.startsWith('/v1/') && !config?.open
    schema.security = needsKey ? [{ bearer: [] }, { header: [] }] : []
  })
  // One text for all requests: no key is needed, and copies for thousands of requests pipelined on one connection would
  // fill the memory.
  const asText = once((document: object) => JSON.stringify(document))
  const send = (reply: FastifyReply) =>
    reply.type('application/json; charset=utf-8').send(asText(app.swagger()))
  await app.register(swaggerUi, {
    routePrefix: '/docs',
    uiHooks: {
      preHandler: (request, reply, done) => {
        // JSON is YAML, too, and to write the document as other YAML takes half a second.
        if (/^\/docs\/(json|yaml)$/.test(request.routeOptions.url ?? '')) void send(reply)
        else done()
      },
    },
    staticCSP: PAGE_POLICY,
    theme: { title: 'Baton API' },
    uiConfig: { docExpansion: 'none', tryItOutEnabled: true },
  })
  // People open the address that a start prints.
  app.get('/', { schema: { hide: true } }, async (_, reply) => reply.redirect('/docs'))
  app.get(
    '/openapi.json',
    { schema: { operationId: 'getOpenApi', summary: 'This document', response: { 200: Json } } },
    async (_, reply) => send(reply),
  )
}

/** The description of a status if the route has none of its own. */
const STATUSES: Record<string, string> = {
  200: 'Done',
  201: 'Created',
  202: 'Accepted; goes on in the background',
  204: 'No content',
}

const HEADERS = {
  'x-request-id': "The request's id, also in errors: the caller's own, where it sent one",
  Location: 'Where what was made is',
  'x-baton-turn': "The turn's id",
  'Idempotent-Replayed': '`true`: the turn is one that was begun before, under the same key',
  'Retry-After': 'Seconds to wait',
  'WWW-Authenticate': 'With a 401: `Bearer`',
}
const MAKES = ['createSession', 'createConnector', 'createCredential', 'importLogin']
const STARTS = 'startTurn'

/** Which of HEADERS an operation's answer of this status may carry. */
function sent(operation: string, status: string): (keyof typeof HEADERS)[] {
  const any: (keyof typeof HEADERS)[] = ['x-request-id']
  if (['429', '502', '503', '504', 'default'].includes(status)) any.push('Retry-After')
  if (status === 'default') any.push('WWW-Authenticate')
  if (operation === STARTS) return ['Location', 'x-baton-turn', 'Idempotent-Replayed', ...any]
  return status === '201' && MAKES.includes(operation) ? ['Location', ...any] : any
}

/** Responses with their headers, as references. */
const withHeaders = (operation: string, responses: Node): Node =>
  Object.fromEntries(
    Object.entries(responses).map(([status, response]) => {
      const headers = sent(operation, status).map((name) => [name, { $ref: `#/components/headers/${name}` }])
      return [status, { ...(response as Node), headers: Object.fromEntries(headers) }]
    }),
  )

type Node = Record<string, unknown>

/**
 * Moves every schema with a title to `components.schemas`, and puts a reference in its place. Adds what the generator
 * leaves out: statuses in words, headers of answers, and which bodies may be absent.
 */
function named<D extends object>(document: D): D {
  const schemas: Node = {}
  const place = (title: string, schema: Node) => {
    schemas[title] = schema
    return { $ref: `#/components/schemas/${title}` }
  }
  const moved = (value: unknown, at = ''): unknown => {
    if (Array.isArray(value)) return value.map((item) => moved(item))
    if (!isRecord(value)) return value
    if (at === 'requestBody') value.required = needsBody(value)
    const copy = readable(
      Object.fromEntries(Object.entries(value).map(([key, item]) => [key, moved(item, key)])),
    )
    if (typeof copy.operationId === 'string')
      copy.responses = withHeaders(copy.operationId, copy.responses as Node)
    if (copy.description === 'Default Response') copy.description = STATUSES[at] ?? ''
    const { title, type, oneOf } = copy
    if (typeof title !== 'string' || (type === undefined && oneOf === undefined)) return copy
    const { title: _, ...schema } = copy
    return place(title, isRecord(schema.discriminator) ? tagged(schema, title) : schema)
  }
  /** A discriminator tells apart only schemas that have a name (OpenAPI 3.1, 4.8.25). */
  const tagged = (schema: Node, title: string): Node => {
    const tag = String((schema.discriminator as Node).propertyName)
    const mapping: Record<string, string> = {}
    const oneOf = (schema.oneOf as Node[]).map((branch) => {
      const { const: only, enum: several } = (branch.properties as Record<string, Node>)[tag] ?? {}
      const values = Array.isArray(several) ? several.map(String) : [String(only)]
      const name = (values[0] ?? '').replace(/(?:^|[._])(\w)/g, (_, letter: string) => letter.toUpperCase())
      const reference = place(`${title}${name}`, branch)
      for (const value of values) mapping[value] = reference.$ref
      return reference
    })
    return { ...schema, oneOf, discriminator: { propertyName: tag, mapping } }
  }
  const { components = {}, ...rest } = moved(document) as { components?: object }
  const headers = Object.fromEntries(
    Object.entries(HEADERS).map(([name, description]) => [name, { description, schema: { type: 'string' } }]),
  )
  return { ...rest, components: { ...components, headers, schemas } } as D
}

/** Rewrites what generators of clients misread. */
function readable(schema: Node): Node {
  const { enum: values, anyOf, pattern, ...rest } = schema
  // All enums are of words. A null among them is lost, or becomes the word "null".
  if (Array.isArray(values)) {
    const words = { type: 'string', enum: values.filter((value) => value !== null) }
    if (words.enum.length === values.length) return { ...rest, ...words }
    const { type: _, ...more } = rest
    return { ...more, anyOf: [words, { type: 'null' }] }
  }
  // A choice between required fields makes the whole object one of unknown type.
  if (Array.isArray(anyOf) && rest.properties) {
    const { description, ...object } = rest
    return { description, anyOf: anyOf.map((branch: Node) => ({ ...object, ...branch })) }
  }
  // Checks are made without the flag `u`, and `\p{C}` is then another class: it has the letters p and C.
  return typeof pattern === 'string' && pattern.includes('\\p{') ? rest : schema
}

/** A body whose fields are all optional may be absent. */
function needsBody({ content }: Node): boolean {
  const { schema = {} } = (content as Record<string, { schema?: Wanting }>)['application/json'] ?? {}
  return needsField(schema)
}
