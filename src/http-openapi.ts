/** The OpenAPI 3.1 document, made from the routes' own schemas, and the page that shows it. */
import swagger from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import type { App } from '../routes/app.ts'
import { ErrorShape } from '../routes/schemas.ts'

const DESCRIPTION =
  'An HTTP gateway that keeps one conversation and hands it to any model. ' +
  'Every list is newest first (messages ascend by `seq`); ids sort by time; times are RFC 3339 in UTC.'

/** Before any route: routes are collected as they are registered. */
export async function useOpenApi(app: App, version: string): Promise<void> {
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: { title: 'Baton', version, description: DESCRIPTION },
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
    const response = (schema.response ?? {}) as Record<string, unknown>
    schema.response = { ...response, default: ErrorShape }
    schema.operationId = [method, ...(url.match(/\w+/g) ?? [])]
      .filter((word) => word !== 'v1')
      .join('_')
      .toLowerCase()
    if (url.startsWith('/v1/') && !config?.open) schema.security = [{ bearer: [] }, { header: [] }]
  })
  await app.register(swaggerUi, {
    routePrefix: '/docs',
    staticCSP: true,
    theme: { title: 'Baton API' },
    uiConfig: { docExpansion: 'none', tryItOutEnabled: true },
  })
  app.get('/openapi.json', { schema: { hide: true } }, async () => app.swagger())
}

/** What a status says where its route says no more. */
const STATUSES: Record<string, string> = {
  200: 'Done',
  201: 'Made',
  202: 'Accepted; it goes on',
  204: 'Done; there is nothing to show',
  503: 'Not now',
  default: 'What went wrong',
}

/**
 * Moves every schema with a title to `components.schemas`, a reference in its place; says in words what the
 * generator leaves out.
 */
function named<D extends object>(document: D): D {
  const schemas: Record<string, unknown> = {}
  const moved = (value: unknown, at = ''): unknown => {
    if (Array.isArray(value)) return value.map((item) => moved(item))
    if (typeof value !== 'object' || value === null) return value
    const copy = Object.fromEntries(Object.entries(value).map(([key, item]) => [key, moved(item, key)]))
    if (copy.description === 'Default Response') copy.description = STATUSES[at] ?? ''
    const { title, type, oneOf } = copy
    if (typeof title !== 'string' || (type === undefined && oneOf === undefined)) return copy
    const { title: _, ...schema } = copy
    schemas[title] = schema
    return { $ref: `#/components/schemas/${title}` }
  }
  const { components = {}, ...rest } = moved(document) as { components?: object }
  return { ...rest, components: { ...components, schemas } } as D
}
