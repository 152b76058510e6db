/**
 * What goes out when something goes wrong: one shape for every failure (api.md section 3), the request's id on every
 * response, 404 and 405 told apart. A failure of Baton's own is logged, and its answer says nothing of it.
 */

import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { finished } from 'node:stream'
import type { ConnectionError, FastifyReply, FastifyRequest } from 'fastify'
import type { App } from '../../routes/app.ts'
import { newId } from '../chat/ids.ts'
import { asBatonError, BatonError, type ErrorCode } from '../errors.ts'

const ID = /^[A-Za-z0-9._~-]{1,128}$/

/** The caller's own id if it sent a plain one, so that both sides' logs match. */
export function requestId(headers: Readonly<Record<string, string | string[] | undefined>>): string {
  const given = headers['x-request-id']
  return typeof given === 'string' && ID.test(given) ? given : newId('req')
}

/** Sends the failure in the one shape; a fault of Baton's own is logged, and sent as `internal` without its message. */
export function sendError(thrown: unknown, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  const error = toBatonError(thrown)
  if (error.code === 'internal') {
    const line = { request_id: request.id, err: error.cause ?? error, code: error.code }
    request.log.error(line, 'a request failed')
  }
  const body = { error: { ...error.toBody(), request_id: request.id } }
  const { retry_after: wait } = body.error.details
  if (typeof wait === 'number') reply.header('retry-after', String(wait))
  if (error.code === 'unauthenticated') reply.header('www-authenticate', 'Bearer')
  // Fastify would close the connection at once, and a client that is still sending would lose the answer.
  if (error.code === 'body_too_large') reply.removeHeader('connection')
  reply.code(error.status).header('x-request-id', request.id).type('application/json; charset=utf-8')
  if (request.raw.complete || reply.raw.shouldKeepAlive) return reply.send(body)
  // Node closes the connection if the client asked for that, as urllib does, and the answer would be lost likewise: the rest
  // is read first, for as long as a request may take to arrive.
  finished(request.raw.resume(), () => void reply.send(body))
  return reply
}

/** Fastify's own refusals by their code; any other error with a 4xx status is the request's fault, too. */
function toBatonError(thrown: unknown): BatonError {
  if (thrown instanceof BatonError) return thrown
  const { code, statusCode, message } = isError(thrown) ? thrown : {}
  const known = code === undefined ? undefined : REFUSALS[code]
  if (known) return new BatonError(...known)
  if (typeof statusCode === 'number' && statusCode >= 400 && statusCode < 500) {
    return new BatonError('invalid_request', message ?? 'The request is not valid.')
  }
  return asBatonError(thrown)
}

interface Thrown {
  code?: string
  statusCode?: number
  message?: string
}
const isError = (thrown: unknown): thrown is Thrown => typeof thrown === 'object' && thrown !== null

const REFUSALS: Readonly<Record<string, [ErrorCode, string]>> = {
  FST_ERR_CTP_BODY_TOO_LARGE: ['body_too_large', 'The body is larger than BATON_BODY_LIMIT allows.'],
  FST_ERR_BAD_URL: ['invalid_request', 'The path does not begin with /, or is not valid percent-encoding.'],
  FST_ERR_MAX_PARAM_LENGTH: ['invalid_request', 'A part of the path is longer than 512 characters.'],
}

/** Registers the error handler, and the answers for an unknown path or method. Call it before any route is added. */
export function useErrors(app: App): void {
  const methodsAt = collectMethods(app)
  app.addHook('onRequest', (request, reply, done) => {
    reply.header('x-request-id', request.id)
    // Of several Hosts Node takes the first, while a proxy in front may have looked at another (RFC 9112 section 3.2).
    const hosts = hostsIn(request.raw)
    if (hosts > 1 || (hosts === 0 && request.raw.httpVersion === '1.1'))
      return done(new BatonError('invalid_request', 'A request needs a Host header, and only one.'))
    done()
  })
  app.setErrorHandler((error, request, reply) => sendError(error, request, reply))
  const notHere = (request: FastifyRequest, reply: FastifyReply): FastifyReply => {
    const path = request.url.split('?', 1)[0] ?? ''
    const methods = methodsAt(path)
    // If the method is allowed, the route was found and has nothing here: a file of /docs that does not exist.
    if (methods.length === 0 || methods.includes(request.method)) {
      return sendError(
        new BatonError('not_found', `There is nothing at ${path}; /docs shows what there is.`),
        request,
        reply,
      )
    }
    const allowed = methods.join(', ')
    const error = new BatonError(
      'method_not_allowed',
      `${path} does not allow ${request.method}; use ${allowed}.`,
    )
    return sendError(error, request, reply.header('allow', allowed))
  }
  // Answered before the body is read: the caller was not asked for a key, and a large body takes seconds.
  app.addHook('preParsing', (request, reply, _, done) => {
    // No text of Baton's holds NUL, and PostgreSQL takes none in a parameter.
    if (request.url.includes('%00'))
      return done(new BatonError('invalid_request', 'The URL holds a NUL character.'))
    if (request.is404) notHere(request, reply)
    else done()
  })
  app.setNotFoundHandler(notHere)
}

const hostsIn = ({ rawHeaders }: IncomingMessage): number =>
  rawHeaders.filter((text, at) => at % 2 === 0 && text.toLowerCase() === 'host').length

/** Which methods a path allows, of the routes that are registered from now on. */
function collectMethods(app: App): (path: string) => string[] {
  const routes: { pattern: RegExp; methods: string[] }[] = []
  app.addHook('onRoute', ({ url, method, prefix }) => {
    // The route that answers preflights everywhere does not count.
    if (url === '*') return
    const pattern = new RegExp(
      `^${url
        .replace(/[.+?^$()[\]{}|\\]/g, '\\$&')
        .replace(/:[^/]+/g, '[^/]+')
        .replace('*', '.*')}${url === prefix ? '/?' : ''}$`,
    )
    routes.push({ pattern, methods: [method].flat() })
  })
  return (path) => [
    ...new Set(routes.filter(({ pattern }) => pattern.test(path)).flatMap(({ methods }) => methods)),
  ]
}

/** A request that is not HTTP: answered in the same shape before the connection is closed. */
export function onClientError({ code }: ConnectionError, socket: Socket): void {
  if (code === 'ECONNRESET' || socket.destroyed || !socket.writable) return void socket.destroy()
  const [status, message] = NOT_HTTP[code] ?? ['400 Bad Request', 'The request is not valid HTTP.']
  const id = newId('req')
  const error = new BatonError('invalid_request', message)
  const body = JSON.stringify({ error: { ...error.toBody(), request_id: id } })
  const head = [
    `HTTP/1.1 ${status}`,
    'content-type: application/json; charset=utf-8',
    `content-length: ${Buffer.byteLength(body)}`,
    `x-request-id: ${id}`,
    'connection: close',
  ]
  socket.end(`${head.join('\r\n')}\r\n\r\n${body}`)
  // Node leaves it to this handler to close the connection: a client that does not, or sends on, would keep it for good.
  setTimeout(() => socket.destroy(), LINGER_MS).unref()
}

/** How long a client that is still sending may take to read why its connection is closed. */
const LINGER_MS = 1000

const NOT_HTTP: Record<string, [string, string]> = {
  HPE_HEADER_OVERFLOW: ['431 Request Header Fields Too Large', 'The headers are too large.'],
  ERR_HTTP_REQUEST_TIMEOUT: ['408 Request Timeout', 'The request did not arrive in time.'],
}
