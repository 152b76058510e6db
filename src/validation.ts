/**
 * One way to say in words what a schema found: used for request bodies and for the configuration file.
 * The validators are Ajv's, made here so that every schema of Baton is read with the same rules.
 */
import { createRequire } from 'node:module'
import type { Ajv, ErrorObject, Options } from 'ajv'
import { isRecord, stepsOf } from './chat/json.ts'
import { isBase64 } from './chat/media.ts'
import { parseDuration } from './duration.ts'
import { oneLine } from './text.ts'

/** What is wrong where, and what to do about it. */
export interface Problem {
  path: string
  problem: string
  /** Empty if the problem itself says what to do */
  remedy: string
}

const INSTANT =
  /^((?:19[7-9]\d|[2-9]\d{3})-\d{2}-\d{2})T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:0\d|1[0-5]):[0-5]\d)$/

/**
 * Only times that JavaScript and PostgreSQL both hold: JavaScript makes another day of a 30 February, PostgreSQL
 * refuses a zone of 16 hours.
 */
function isInstant(text: string): boolean {
  const [, day] = INSTANT.exec(text) ?? []
  return day !== undefined && isDay(day) && Date.parse(text) <= LAST_INSTANT
}

/** The last instant in UTC that RFC 3339 can write. */
export const LAST_INSTANT = Date.UTC(9999, 11, 31, 23, 59, 59, 999)

/**
 * The time as it will be shown. PostgreSQL rounds what is finer than its microseconds, and the last instant of .NET
 * (9999-12-31T23:59:59.9999999Z) would become one of the year 10000, which RFC 3339 cannot write.
 */
export const inMilliseconds = (instant: string): string => new Date(instant).toISOString()

/** Whether the calendar has this `YYYY-MM-DD`. */
export const isDay = (text: string): boolean =>
  !Number.isNaN(Date.parse(text)) && new Date(text).toISOString().startsWith(text)

/** Formats: what is wrong with a text, or null. */
const FORMATS: Record<string, (text: string) => string | null> = {
  'date-time'(text) {
    if (isInstant(text)) return null
    // A query has a space for each + that was not encoded, and to its author the time looks right.
    const plus = /:[\d.]+ \d\d:\d\d$/.test(text) ? '; write + as %2B in a URL' : ''
    return `must be an RFC 3339 time such as 2026-01-31T12:00:00Z${plus}`
  },
  duration(text) {
    const read = parseDuration(text)
    return 'problem' in read ? read.problem : null
  },
  byte: (text) =>
    // Standard base64, padded (RFC 4648 section 4): what every provider takes.
    text.length % 4 === 0 && isBase64(text)
      ? null
      : 'must be standard base64 with its padding, without line breaks or a data: prefix',
}

/** Loaded when it is first needed: nothing has to be validated before the process is ready. */
const loadAjv = () => createRequire(import.meta.url)('ajv') as typeof import('ajv')

/** An Ajv with Baton's formats. Strict: a schema with an unknown keyword is a defect of the code. */
export function createAjv(options: Pick<Options, 'coerceTypes' | 'allErrors'>): Ajv {
  const { Ajv } = loadAjv()
  const ajv = new Ajv({
    strict: true,
    // One error of a list is enough to name; a body of a million wrong items must not build a million.
    allErrors: options.allErrors ?? false,
    coerceTypes: options.coerceTypes ?? false,
    // Text such as 1e999 is coerced to Infinity, which strict numbers would not hold to any bound.
    strictNumbers: !options.coerceTypes,
    allowUnionTypes: true,
    discriminator: true,
    verbose: true,
    strictRequired: false,
    strictTuples: false,
    // Each schema is compiled at every start, and runs once a request: shorter code would save less than it costs.
    code: { optimize: false },
  })
  for (const [name, problem] of Object.entries(FORMATS)) {
    ajv.addFormat(name, (text: string) => problem(text) === null)
  }
  return ajv
}

/** `/input/0/text` → `input[0].text`; an empty name, as in `?=1`, is written as `""` */
function fieldPath(pointer: string, field?: string): string {
  const steps = stepsOf(pointer)
  if (field !== undefined) steps.push(field)
  return steps.reduce((path, step) => {
    if (/^\d+$/.test(step)) return `${path}[${step}]`
    const name = step || '""'
    return path === '' ? name : `${path}.${name}`
  }, '')
}

/**
 * The error that says most: the one deepest in the value. Among those of a union: what a branch of the right type found
 * wrong, else the union's own words, and last, one branch's demand for another type.
 */
export function deepest(errors: readonly ErrorObject[]): ErrorObject | undefined {
  const depth = (error: ErrorObject) => problemOf(error).path.split(/[.[]/).length
  const vague = ({ keyword }: ErrorObject) => (keyword === 'type' ? 2 : keyword === 'anyOf' ? 1 : 0)
  const [found] = [...errors].sort((a, b) => depth(b) - depth(a) || vague(a) - vague(b))
  // A branch may have only its own rules: the fields, and words about the whole, are beside the branches.
  const union = errors.find(({ keyword, instancePath }) => {
    return keyword === 'anyOf' && instancePath === found?.instancePath
  })
  if (!found || !union || found.parentSchema?.properties) return found
  return { ...found, parentSchema: { ...union.parentSchema, ...found.parentSchema } }
}

export function problemOf(error: ErrorObject): Problem {
  const word = WORDS[error.keyword]
  const said = word?.(error)
  const path = fieldPath(error.instancePath, said?.field)
  return {
    path,
    problem: said?.problem ?? error.message ?? 'is not valid',
    remedy: said?.remedy ?? described(error),
  }
}

interface Said {
  /** A field below the place where the error was found */
  field?: string
  problem: string
  remedy?: string
}

/** How each schema keyword's failure is put into words. */
const WORDS: Record<string, (error: ErrorObject) => Said> = {
  required: ({ params, parentSchema, data }) => ({
    field: params.missingProperty,
    problem: 'is required',
    remedy: misspelt(parentSchema, data) ?? describedField(parentSchema, params.missingProperty),
  }),
  additionalProperties: ({ params, parentSchema }) => ({
    field: params.additionalProperty,
    problem: 'is not a known field',
    remedy: knownFields(parentSchema),
  }),
  type: ({ params, parentSchema }) => ({
    // Of a time that came as a number, its form says more than that it is text.
    problem: FORMATS[parentSchema?.format]?.('') ?? `must be ${typeWords(params.type)}`,
  }),
  enum: ({ params }) => ({ problem: `must be one of: ${params.allowedValues.join(', ')}` }),
  const: ({ params }) => ({ problem: `must be ${JSON.stringify(params.allowedValue)}` }),
  discriminator: ({ params, parentSchema }) => ({
    field: params.tag,
    problem: `must be one of: ${tagsOf(parentSchema, params.tag).join(', ')}`,
  }),
  pattern: ({ params }) => ({ problem: `must match ${params.pattern}` }),
  format: ({ params, data }) => ({
    problem: FORMATS[params.format]?.(String(data)) ?? `must be a ${params.format}`,
  }),
  minLength: ({ params }) => ({
    problem: params.limit === 1 ? 'must not be empty' : `must have at least ${params.limit} characters`,
  }),
  maxLength: ({ params }) => ({ problem: `must have at most ${params.limit} characters` }),
  minItems: ({ params }) => ({ problem: `must have at least ${params.limit} item(s)` }),
  maxItems: ({ params }) => ({ problem: `must have at most ${params.limit} items` }),
  maxProperties: ({ params }) => ({ problem: `must have at most ${params.limit} fields` }),
  minimum: ({ params }) => ({ problem: `must be ${params.limit} or more` }),
  maximum: ({ params }) => ({ problem: `must be ${params.limit} or less` }),
  anyOf: () => ({ problem: 'fits none of its allowed shapes' }),
}

type Schema = Record<string, unknown>

const described = ({ parentSchema }: ErrorObject): string => sentence(parentSchema?.description)
const sentence = (text: unknown): string => (typeof text === 'string' ? text : '')

function describedField(schema: Schema | undefined, field: string): string {
  const property = isRecord(schema?.properties) ? schema.properties[field] : undefined
  const { enum: values, description } = isRecord(property) ? property : { enum: tagsOf(schema, field) }
  const choice = Array.isArray(values) && values.length > 0 ? `Write one of: ${values.join(', ')}` : ''
  return [choice, sentence(description)].filter((words) => words !== '').join('. ')
}

/** A required field that is missing is often there under another name. */
function misspelt(schema: Schema | undefined, data: unknown): string | undefined {
  if (!isRecord(data) || !isRecord(schema?.properties) || schema.additionalProperties !== false)
    return undefined
  const known = schema.properties
  const stray = Object.keys(data).find((name) => !Object.hasOwn(known, name))
  return stray && `'${oneLine(stray, 60)}' is not a known field`
}

/** In words, which fields an object of the schema may have. */
export function knownFields(schema: Schema | undefined): string {
  const names = isRecord(schema?.properties) ? Object.keys(schema.properties) : []
  if (names.length > 0) return `Known fields here: ${names.join(', ')}`
  return sentence(schema?.description) || 'No fields are taken here'
}

function tagsOf(schema: Schema | undefined, tag: string): unknown[] {
  const branches = Array.isArray(schema?.oneOf) ? schema.oneOf : []
  return branches.flatMap((branch) => {
    const property = isRecord(branch) && isRecord(branch.properties) ? branch.properties[tag] : undefined
    if (!isRecord(property)) return []
    return Array.isArray(property.enum) ? property.enum : [property.const]
  })
}

function typeWords(type: string | string[]): string {
  const words: Record<string, string> = {
    string: 'a string',
    number: 'a number',
    integer: 'a whole number',
    boolean: 'true or false',
    object: 'an object',
    array: 'a list',
    null: 'null',
  }
  const list = typeof type === 'string' ? type.split(',') : type
  return list.map((name) => words[name] ?? name).join(' or ')
}
