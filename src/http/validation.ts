/**
 * Checks what comes in. Bodies are checked as they are: nothing coerced, nothing removed, no unknown field. Query, path
 * and headers arrive as text and are coerced. A body may be absent if all its fields are optional, whatever content
 * type was announced.
 */

import { isUtf8 } from 'node:buffer'
import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import type { Ajv, AnySchemaObject, ErrorObject, ValidateFunction } from 'ajv'
import type { FastifyRequest, FastifySchemaValidationError, RouteOptions } from 'fastify'
import { type TSchema, Type } from 'typebox'
import type { App } from '../../routes/app.ts'
import { excessIn, isExact, isRecord, READABLE } from '../chat/json.ts'
import { BatonError, invalid } from '../errors.ts'
import { oneLine } from '../text.ts'
import { createAjv, deepest, problemOf } from '../validation.ts'

const EXCESS = {
  depth: `The body is nested deeper than ${READABLE.depth} levels; send a deeper value as text.`,
  values: `The body holds more than ${READABLE.values} values; send fewer at a time, or many small ones as one text.`,
}
/** Readiness probes that have waited since the start are answered before schemas are compiled. */
const ANSWER_FIRST_MS = 50

/** In place of compilers that Fastify would load itself, until `useValidation` has set ours. */
const none = (): never => {
  throw new Error('a route was added before useValidation')
}
export const NO_COMPILERS = { buildValidator: none, buildSerializer: none }

/** What `make` makes, once it is asked for. */
function lazily<T>(make: () => T): () => T {
  let made: T | undefined
  return () => {
    made ??= make()
    return made
  }
}

const strict = lazily(() => createAjv({}))
const coercing = lazily(() => createAjv({ coerceTypes: true }))
/** By what they are made from: many routes take the same parameters, and all apps of a process the same bodies. */
const validators = new Map<string, () => ValidateFunction>()

/** Makes the app check requests by Baton's rules and answer with its words. */
export function useValidation(app: App): void {
  // Compiling all schemas takes half a second: each is compiled by the first request for it, or else after the start.
  app.setValidatorCompiler(({ schema, httpPart }) => {
    const key = JSON.stringify([httpPart === 'body', schema])
    const make = (): ValidateFunction => {
      const ajv = httpPart === 'body' ? strict() : coercing()
      return ajv.compile(shared(ajv, schema as TSchema))
    }
    const ready = validators.get(key) ?? lazily(make)
    validators.set(key, ready)
    return (data: unknown) => {
      const check = ready()
      return check(data) || { error: check.errors ?? [] }
    }
  })
  app.addHook('onListen', async () => {
    await sleep(ANSWER_FIRST_MS, undefined, { ref: false })
    for (const ready of validators.values()) {
      ready()
      await setImmediate()
    }
  })
  app.setSchemaErrorFormatter((errors, part) => invalidRequest(errors as Failure[], part))
  // Response schemas document; the code's types hold them, and tests check every answer against them.
  app.setSerializerCompiler(() => JSON.stringify)
  useBodies(app)
  app.addHook('onRoute', closeQuery)
  app.addHook('preValidation', fitBody)
}

/**
 * A query is refused if none is taken. If it was ignored, `?apply=now` of a call that takes `apply` in its body would
 * do something else than was asked.
 */
function closeQuery({ schema, url, config }: RouteOptions): void {
  if (schema && url.startsWith('/v1/') && !config?.open) schema.querystring ??= NO_QUERY
}
const NO_QUERY = Type.Object(
  {},
  { additionalProperties: false, description: 'This call takes nothing in the query' },
)

/**
 * A body is refused likewise if none is taken. Not by a schema: the document would show a body of its own. If one is
 * taken that may be absent, an absent one has no fields.
 */
function fitBody(request: FastifyRequest, _: unknown, done: (error?: Error) => void): void {
  const schema = request.routeOptions.schema?.body as Wanting | undefined
  if (schema && request.body === undefined && !needsField(schema)) request.body = {}
  const [field] = schema === undefined && isRecord(request.body) ? Object.keys(request.body) : []
  if (field === undefined) return done()
  done(invalid(field, `${oneLine(field, 60)} is not a known field. This call takes nothing in its body.`))
}

/** The part of a body's schema that says whether the body may be absent. */
export interface Wanting {
  required?: readonly string[]
  anyOf?: readonly Wanting[]
}
export const needsField = ({ required = [], anyOf }: Wanting): boolean =>
  required.length > 0 || (anyOf?.every(needsField) ?? false)

type Failure = FastifySchemaValidationError & ErrorObject

/** Schemas with a title stand in many routes; each is compiled once, with a reference in its place. */
function shared(ajv: Ajv, root: object): AnySchemaObject {
  const referred = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(referred)
    if (typeof value !== 'object' || value === null) return value
    const copy = mapped(value)
    if (typeof copy.title !== 'string') return copy
    if (!ajv.getSchema(copy.title)) ajv.addSchema(copy, copy.title)
    return { $ref: copy.title }
  }
  const mapped = (value: object) =>
    Object.fromEntries(
      Object.entries(value).map(([key, item]) => [key, key === 'examples' ? item : referred(item)]),
    )
  return mapped(root)
}

function invalidRequest(errors: readonly Failure[], part: string): BatonError {
  const error = deepest(errors)
  if (!error) return new BatonError('invalid_request', 'The request is not valid.')
  // Fastify gives null for a body that is absent.
  if (part === 'body' && error.data === null && error.instancePath === '')
    return new BatonError('invalid_request', MISSING)
  const { path: found, problem, remedy } = problemOf(error)
  // Node makes the names of headers lower case.
  const path = part === 'headers' ? found.replace(/\b[a-z]/g, (letter) => letter.toUpperCase()) : found
  const subject = path === '' ? PARTS[part] : path
  // A name that stands in a query twice arrives as a list, which no call takes: each of its values may be right.
  const isTwice = part === 'querystring' && Array.isArray(error.data)
  const words = isTwice ? 'may be given only once.' : `${problem}.${remedy ? ` ${remedy}.` : ''}`
  const message = `${subject ?? 'The request'} ${words}`
  return new BatonError('invalid_request', message, { param: path || null })
}

const MISSING = 'The body is missing: send a JSON object as content-type: application/json.'

const PARTS: Record<string, string> = {
  body: 'The body',
  querystring: 'The query',
  params: 'The path',
  headers: 'The headers',
}

function useBodies(app: App): void {
  const parseJson = app.getDefaultJsonParser('error', 'error')
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, body: Buffer, done) => {
    if (body.length === 0) return done(null, undefined)
    const { 'content-encoding': encoding = 'identity' } = request.headers
    if (encoding.toLowerCase() !== 'identity') return done(new BatonError('unsupported_media_type', PACKED))
    // Decoding would put U+FFFD in place of characters in another encoding, and the store would keep those.
    if (!isUtf8(body)) return done(new BatonError('invalid_request', 'The body is not valid UTF-8.'))
    const text = body.toString()
    const excess = excessIn(text)
    if (excess) return done(new BatonError('invalid_request', EXCESS[excess]))
    void parseJson(request, text, (error, value) => {
      if (error) return done(unparsed(text))
      // It would be stored, and passed to tools, as another number.
      const rounded = isExact(text) ? null : pathTo(value, isRounded)
      if (rounded !== null) return done(inexact(rounded))
      done(null, value)
    })
  })
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (_, body, done) => {
    if (body.length === 0) return done(null, undefined)
    done(new BatonError('unsupported_media_type', 'Send the body as content-type: application/json.'))
  })
  app.addHook('onRequest', plainContentType)
}

/** The parser also refuses JSON that has a key such as `__proto__`: the error names that key. */
function unparsed(text: string): BatonError {
  let param: string | null = null
  try {
    param = pathTo(JSON.parse(text), isPrototype)
  } catch {}
  if (param === null) return new BatonError('invalid_request', NO_JSON)
  const words = `${param} has a name that no object may have here; leave it out, or give it another name.`
  return invalid(param, words)
}

/** Not the parser's own words: these quote the body, which may hold a secret. */
const NO_JSON =
  'The body is not valid JSON. Names and texts need double quotes; a line break in a text is \\n; ' +
  'comments and a comma at the end of a list are not allowed.'

const inexact = (param: string) =>
  invalid(param, `${param} is a number that would become another one here; send it as text.`)

/** Tests a member: its value, its key, and the key of the object that it is in. */
type Test = (value: unknown, key: string, name: string) => boolean
const isPrototype: Test = (_, key, name) =>
  key === '__proto__' || (key === 'prototype' && name === 'constructor')
const isRounded: Test = (value) => typeof value === 'number' && Math.abs(value) > Number.MAX_SAFE_INTEGER

/** The path to the first such member, or null. */
const pathTo = (value: unknown, test: Test): string | null =>
  pathBelow(value, test, '')?.replace(/^\./, '') ?? null

/** The path is put together on the way back: most members do not match, and names may be megabytes long. */
function pathBelow(value: unknown, test: Test, name: string): string | null {
  if (typeof value !== 'object' || value === null) return null
  const isList = Array.isArray(value)
  for (const [key, item] of Object.entries(value)) {
    const below = test(item, key, name) ? '' : pathBelow(item, test, key)
    if (below !== null) return `${isList ? `[${key}]` : `.${key}`}${below}`
  }
  return null
}

const PACKED = 'Send the body without content-encoding: it is read as it comes.'

/**
 * Without a body the content type is ignored. Only the parsers know whether there is one, so a malformed content type
 * must not be refused earlier.
 */
function plainContentType(request: FastifyRequest, _: unknown, done: () => void): void {
  const { headers } = request.raw
  if (!MEDIA_TYPE.test(headers['content-type'] ?? '')) headers['content-type'] = 'application/octet-stream'
  done()
}
const MEDIA_TYPE = /^\s*[\w!#$%&'*+.^`|~-]+\/[\w!#$%&'*+.^`|~-]+\s*(;|$)/
