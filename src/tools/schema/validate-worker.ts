/**
 * The thread that checks arguments against a server's own schema. Schemas come from strangers: one that compiles for
 * ever, or a pattern that backtracks for ever, blocks only this thread, and validate.ts ends the thread.
 */
import { parentPort } from 'node:worker_threads'
import type { ErrorObject, ValidateFunction } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { stepsOf } from '../../chat/json.ts'
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
/** Id 0: the thread is ready. */
export type Judgement = { id: number } & (
  | { problems: Misfit[] }
  | { unusable: true }
  /** The schema is not compiled here, or not any more: the job must bring it */
  | { unknown: true }
)

const MOST_COMPILED = 300
const MOST_PROBLEMS = 5
const MOST_NAMED = 20

const compiled = new Map<string, ValidateFunction>()

/** Every draft is read as 2020-12; a reference that leads out of the schema, or nowhere, allows anything. */
function compile(schema: unknown): ValidateFunction {
  // One instance for each schema, so that nothing is kept from one schema for another. `format` only annotates
  // (2020-12, validation 7.2.1): servers check what they mean by it.
  const ajv = new Ajv2020({
    strict: false,
    allErrors: true,
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
    const errors = validate(value) ? [] : (validate.errors ?? [])
    return { id, problems: errors.slice(0, MOST_PROBLEMS).map(problemOf) }
  } catch {
    return { id, unusable: true }
  }
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
