/**
 * The thread that checks arguments against a server's own schema. Schemas come from strangers: one that compiles for
 * ever, or a pattern that backtracks for ever, blocks only this thread, and validate.ts ends the thread.
 */
import { parentPort } from 'node:worker_threads'
import type { ErrorObject, ValidateFunction } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { BEARABLE, isExact, isRecord, isWithin, jsonIn, stepsOf, valueAt } from '../../chat/json.ts'
import { modernised } from './dialect.ts'
import { asWritten, patternOf } from './keywords.ts'

export interface Job {
  id: number
  /** Hash of the schema */
  key: string
  /** Sent only once this thread has asked for it */
  schema?: unknown
  value: unknown
}
/** What does not fit, and where: the caller puts it in the names that the model was given. */
export interface Misfit {
  path: string[]
  message: string
  /** The property that is missing or not allowed */
  property?: string
}
/** What became of a value that was checked. */
export interface Findings {
  problems: Misfit[]
  /** What the value means, if it fits only so: with texts read as the JSON that they hold, with defaults, without nulls */
  read?: unknown
}
/** Id 0: the thread is ready. */
export type Judgement = { id: number } & (
  | Findings
  | { unusable: true }
  /** The schema is not compiled here, or not any more: the job must bring it */
  | { unknown: true }
)

const MOST_COMPILED = 300
const MOST_PROBLEMS = 5
/** A text may hold a text, or a null; and a default of null where none may be is left out and filled in for ever. */
const MOST_ROUNDS = 4
const MOST_NAMED = 20

/** Whose failure says that a value is none of those that may be there, null or text included. */
const KINDS = new Set(['type', 'enum', 'const'])

const compiled = new Map<string, ValidateFunction>()

/** Every draft is read as 2020-12; a reference that leads out of the schema, or nowhere, allows anything. */
function compile(schema: unknown): ValidateFunction {
  // One instance for each schema, so that nothing is kept from one schema for another. `format` only annotates
  // (2020-12, validation 7.2.1): servers check what they mean by it.
  const ajv = new Ajv2020({
    strict: false,
    allErrors: true,
    // An error has its schema, which may have a default for what is missing.
    verbose: true,
    validateSchema: false,
    validateFormats: false,
    // Else a property named `constructor` is found in every object.
    ownProperties: true,
    logger: false,
    // 19.99 is a multiple of 0.01, whatever their quotient is in binary.
    multipleOfPrecision: 6,
    code: { regExp: readable },
  })
  return ajv.compile(modernised(schema))
}

const readable = (pattern: string): RegExp => patternOf(pattern) ?? /(?:)/
readable.code = 'readable'

function judge({ id, key, schema, value }: Job): Judgement {
  try {
    const validate = compiled.get(key) ?? (schema === undefined ? null : compile(schema))
    if (!validate) return { id, unknown: true }
    if (!compiled.has(key) && compiled.size >= MOST_COMPILED) compiled.clear()
    compiled.set(key, validate)
    if (validate(value)) return { id, problems: [] }
    const errors = validate.errors ?? []
    let misfits = errors
    for (let round = 0; round < MOST_ROUNDS && mend(value, misfits); round++) {
      if (!isWithin(value, BEARABLE)) break
      if (validate(value)) return { id, problems: [], read: value }
      misfits = validate.errors ?? []
    }
    return { id, problems: errors.slice(0, MOST_PROBLEMS).map(problemOf) }
  } catch {
    return { id, unusable: true }
  }
}

/** Changes the value into what it seems to mean; false if there is nothing to change. */
function mend(value: unknown, errors: readonly ErrorObject[]): boolean {
  const isRead = readMeant(value, errors)
  return fillDefaults(value, errors) || isRead
}

/**
 * Reads texts as the JSON that they hold where no text may be, and leaves out properties that may not be null. Models of
 * all vendors now and then write a list, an object or a number as a text, and null for what they do not give, and cannot
 * be told otherwise (anthropics/claude-code#22394, jjang-ai/vmlx#48; danny-avila/LibreChat#11905). True if there was
 * something to read.
 */
function readMeant(value: unknown, errors: readonly ErrorObject[]): boolean {
  let isRead = false
  for (const { keyword, instancePath } of errors) {
    const end = instancePath.lastIndexOf('/')
    if (!KINDS.has(keyword) || end < 0) continue
    const given = valueAt(value, instancePath)
    const parent = valueAt(value, instancePath.slice(0, end)) as Record<string, unknown>
    const [key = ''] = stepsOf(instancePath.slice(end))
    const held = typeof given === 'string' ? heldBy(given) : undefined
    if (given === null && !Array.isArray(parent)) delete parent[key]
    else if (held !== undefined) parent[key] = held
    else continue
    isRead = true
  }
  return isRead
}

/** Undefined: the text is no JSON, or holds an id that would change. */
function heldBy(text: string): unknown {
  const held = jsonIn(text)
  return held !== undefined && isExact(text) ? held : undefined
}

/**
 * Gives what is required and missing its default. Many servers list as required what they themselves fill in, since zod 4
 * does so unless it is told that the schema is for input (colinhacks/zod#4279, confluentinc/mcp-confluent#482; the
 * screenshots of @playwright/mcp 0.0.83). True if something was missing that has a default.
 */
function fillDefaults(value: unknown, errors: readonly ErrorObject[]): boolean {
  let isFilled = false
  for (const { keyword, instancePath, params, parentSchema } of errors) {
    if (keyword !== 'required') continue
    const { missingProperty } = params
    const property: unknown = parentSchema?.properties?.[missingProperty]
    if (!isRecord(property) || !Object.hasOwn(property, 'default')) continue
    const parent = valueAt(value, instancePath) as Record<string, unknown>
    // The members of a choice may have a default each: the first counts, as it does with zod.
    if (Object.hasOwn(parent, missingProperty)) continue
    parent[missingProperty] = structuredClone(property.default)
    isFilled = true
  }
  return isFilled
}

function problemOf({ instancePath, message = 'is not valid', params, keyword }: ErrorObject): Misfit {
  const path = stepsOf(instancePath)
  switch (keyword) {
    case 'required':
      return { path, message: 'must have the property', property: params.missingProperty }
    case 'additionalProperties':
      return { path, message: 'must not have the property', property: params.additionalProperty }
    case 'enum':
      return { path, message: `must be one of ${JSON.stringify(params.allowedValues.slice(0, MOST_NAMED))}` }
    case 'const':
      return { path, message: `must be ${JSON.stringify(params.allowedValue)}` }
    case 'pattern':
      return { path, message: `must match pattern "${asWritten(params.pattern)}"` }
    default:
      return { path, message }
  }
}

parentPort?.on('message', (job: Job) => parentPort?.postMessage(judge(job)))
parentPort?.postMessage({ id: 0, problems: [] } satisfies Judgement)
