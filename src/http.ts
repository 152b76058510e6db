/**
 * The HTTP side as one Fastify app: hardening, who may call, validation, errors, the OpenAPI document, and
 * the routes. It owns no state but its connections and open streams, and knows nothing of how its parts do their work.
 */
import { type IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http'
import { Socket } from 'node:net'
import cors from '@fastify/cors'
import Fastify, {
  type FastifyBaseLogger,
  type FastifyReply,
  type FastifyRequest,
  LogController,
} from 'fastify'
import helmet from 'helmet'
import type { App, RouteDeps } from '../routes/app.ts'
import { auditRoutes } from '../routes/audit.ts'
import { connectorRoutes } from '../routes/connectors.ts'
import { credentialRoutes } from '../routes/credentials.ts'
import { eventRoutes } from '../routes/events.ts'
import { keyRoutes } from '../routes/keys.ts'
import { messageRoutes } from '../routes/messages.ts'
import { oauthRoutes } from '../routes/oauth.ts'
import { operateRoutes } from '../routes/operate.ts'
import { sessionToolRoutes } from '../routes/session-tools.ts'
import { sessionRoutes } from '../routes/sessions.ts'
import { toolExecutionRoutes } from '../routes/tool-executions.ts'
import { turnRoutes } from '../routes/turns.ts'
import type { Config } from './config/config.ts'
import { BatonError } from './errors.ts'
import { watchConnections } from './http/connections.ts'
import { onClientError, requestId, sendError, useErrors } from './http/errors.ts'
import { useOpenApi } from './http/openapi.ts'
import { createRateLimit } from './http/rate.ts'
import { createStreams, PING_MS, STUCK_PINGS } from './http/sse.ts'
import { NO_COMPILERS, useValidation } from './http/validation.ts'

export interface HttpDeps extends Omit<RouteDeps, 'streams'> {
  config: Config
  /** Milliseconds between two pings of an event stream; default PING_MS */
  pingMs?: number | undefined
}

/** All below /v1, by the tag of their operations. */
const ROUTES = {
  sessions: sessionRoutes,
  messages: messageRoutes,
  turns: turnRoutes,
  events: eventRoutes,
  'session tools': sessionToolRoutes,
  connectors: connectorRoutes,
  credentials: credentialRoutes,
  logins: oauthRoutes,
  keys: keyRoutes,
  audit: auditRoutes,
  'tool executions': toolExecutionRoutes,
}

/** Probes ask for these every few seconds. */
const UNLOGGED = new Set(['/healthz', '/readyz', '/metrics'])

/** Headers of answers that pages of an allowed origin may read. */
const EXPOSED = ['Location', 'x-baton-turn', 'x-request-id', 'Idempotent-Replayed', 'Retry-After']

/** Builds the app; the caller listens and closes. Closing ends all event streams first. */
export async function buildHttp(deps: HttpDeps): Promise<App> {
  const { pingMs = PING_MS } = deps
  const answered = (reply: FastifyReply) => noteAnswer(deps, reply)
  const streams = createStreams({ ...deps, pingMs, authenticate: deps.auth.authenticate, answered })
  const log: FastifyBaseLogger = deps.log
  const hardening = hardeningHeaders()
  const app: App = Fastify({
    loggerInstance: log,
    // Code that writes a line for a request names the request in the line itself.
    childLoggerFactory: (logger) => logger,
    logController: new LogController({ disableRequestLogging: true }),
    bodyLimit: deps.config.bodyLimit,
    // In UTF-16 units. The routes' schemas count characters, of which 512 may be given.
    routerOptions: { maxParamLength: 1024 },
    schemaController: { compilersFactory: NO_COMPILERS },
    requestTimeout: 300_000,
    // Longer than any balancer keeps an idle connection (Google's 600 s, 620 s as docs/operations.md has it): if Baton
    // closed it first, just as a request set out, the balancer would answer that with a 502 of its own.
    keepAliveTimeout: 650_000,
    // Requests that still come while the server closes are answered as usual, in the usual shape.
    return503OnClosing: false,
    genReqId: ({ headers }) => requestId(headers),
    // Requests that the router refuses pass no hook.
    frameworkErrors: (error, request, reply) =>
      void sendError(error, request, reply.headers({ ...hardening, ...readableBy(request.headers, deps) })),
    clientErrorHandler: onClientError,
    http: {
      // Node's own refusal has no body; useErrors makes one.
      requireHostHeader: false,
      // An answer may be silent for many minutes (`stream: false`, `?wait=`). Balancers of TCP and NATs forget a connection
      // without packets after four to six, and its client then waits for ever.
      keepAlive: true,
      keepAliveInitialDelay: 60_000,
    },
  })
  useErrors(app)
  useValidation(app)
  app.addHook('onSend', (_, reply, payload, done) => {
    // The client has left: what would have been said, as of a wait that was cut short, is no answer to count.
    if (reply.raw.destroyed) return done(null, payload)
    answered(reply)
    if (streams.closing.aborted) reply.header('connection', 'close')
    done(null, payload)
  })
  const refusalOf = watchConnections(app.server, streams.closing, STUCK_PINGS * pingMs)
  // A header `Expect` with an unknown value is ignored: Node's own refusal (417) would have no body and no id.
  app.server.on('checkExpectation', (request, response) => app.server.emit('request', request, response))
  app.addHook('preClose', async () => streams.close())
  await harden(app, deps, hardening)
  app.addHook('onRequest', (_, { raw }, done) => done(refusalOf(raw)))
  await useOpenApi(app)
  const routeDeps: RouteDeps = { ...deps, streams }
  operateRoutes(app, routeDeps)
  await app.register(
    async (v1) => {
      v1.addHook('onRequest', admit(deps))
      for (const [tag, routes] of Object.entries(ROUTES)) {
        v1.register(async (noun) => {
          noun.addHook('onRoute', ({ schema }) => {
            if (schema) schema.tags = [tag]
          })
          routes(noun as App, routeDeps)
        })
      }
    },
    { prefix: '/v1' },
  )
  return app
}

/** Counts an answer, and logs it. */
function noteAnswer({ metrics, log }: HttpDeps, reply: FastifyReply): void {
  const { id, method, routeOptions } = reply.request
  const { url: route = 'none' } = routeOptions
  const { statusCode: status, elapsedTime: ms } = reply
  metrics.httpAnswered(method, route, status, ms)
  if (UNLOGGED.has(route)) return
  log.debug({ request_id: id, method, route, status, ms: Math.round(ms) }, 'request answered')
}

async function harden(
  app: App,
  { auth, config }: HttpDeps,
  hardening: Record<string, string>,
): Promise<void> {
  app.decorateRequest('caller')
  app.addHook('onRequest', async (request) => auth.assertLocal(request.headers))
  app.addHook('onRequest', async (_, reply) => void reply.headers(hardening))
  if (config.corsOrigins.length === 0) return
  await app.register(cors, {
    origin: [...config.corsOrigins],
    methods: ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'],
    exposedHeaders: EXPOSED,
    maxAge: 600,
    strictPreflight: false,
  })
}

/** The CORS plugin's headers, for answers that pass none of its hooks. */
function readableBy({ origin }: IncomingHttpHeaders, { config }: HttpDeps): Record<string, string> {
  const allowed = config.corsOrigins.find((known) => known === '*' || known === origin)
  if (allowed === undefined) return {}
  return {
    'access-control-allow-origin': allowed,
    'access-control-expose-headers': EXPOSED.join(', '),
    vary: 'Origin',
  }
}

/** Computed once: Helmet would compute its headers for each request, and here they never change. */
function hardeningHeaders(): Record<string, string> {
  // Chats and running turns must not be cached, and a cache may keep every answer that does not forbid it.
  const headers: Record<string, string> = { 'cache-control': 'no-store' }
  const apply = helmet({
    // Nothing here is a page but /docs, which brings its own policy.
    contentSecurityPolicy: {
      useDefaults: false,
      directives: { defaultSrc: ["'none'"], frameAncestors: ["'none'"] },
    },
    // Whether the name is served by https alone is up to the proxy that ends TLS.
    strictTransportSecurity: false,
  })
  const response = new ServerResponse(new IncomingMessage(new Socket()))
  apply(response.req, response, (thrown) => {
    if (thrown) throw thrown
  })
  for (const [name, value] of Object.entries(response.getHeaders())) headers[name] = String(value)
  return headers
}

/** Finds out who calls, before the request's body is read. */
function admit(deps: HttpDeps) {
  const countCall = createRateLimit(deps)
  return async (request: FastifyRequest): Promise<void> => {
    const { open = false, admin = false } = request.routeOptions.config
    if (open) return
    request.caller = await deps.auth.authenticate(request.headers)
    await countCall(request.caller)
    if (!admin || request.caller.admin) return
    throw new BatonError('forbidden', 'This needs a key with the scope admin.')
  }
}
