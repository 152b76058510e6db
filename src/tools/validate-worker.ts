/**
 * The thread in which arguments meet a server's own schema. Schemas come from strangers: one that compiles
 * for ever, or a pattern that backtracks for ever, blocks only this thread, and validate.ts ends it.
 */
import { parentPort } from 'node:worker_threads'
import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv'
import { Ajv2019 } from 'ajv/dist/2019.js'
import { Ajv2020 } from 'ajv/dist/2020.js'
import * as formats from 'ajv-formats'

export interface Job {
  id: number
  /** Hash of the schema */
  key: string
  /** Left out once this thread has compiled it */
  schema?: unknown
  value: unknown
}
export type Verdict = { id: number } & (
  | { valid: true }
  | { valid: false; problems: string[] }
  | { unusable: string }
)

const OPTIONS = {
  strict: false,
  allErrors: true,
  validateSchema: false,
  logger: false,
  addUsedSchema: false,
} as const
const MOST_COMPILED = 300
const MOST_PROBLEMS = 5

const compiled = new Map<string, ValidateFunction>()

function compile(schema: unknown): ValidateFunction {
  const dialect =
    typeof schema === 'object' && schema !== null ? String(Reflect.get(schema, '$schema') ?? '') : ''
  // One instance a schema: two schemas may carry the same $id. Old drafts read as draft-07.
  const ajv = /draft-0[467]/.test(dialect)
    ? new Ajv(OPTIONS)
    : /2019-09/.test(dialect)
      ? new Ajv2019(OPTIONS)
      : new Ajv2020(OPTIONS)
  formats.default.default(ajv)
  const plain = typeof schema === 'object' && schema !== null ? { ...schema } : {}
  Reflect.deleteProperty(plain, '$schema')
  return ajv.compile(plain)
}

function judge({ id, key, schema, value }: Job): Verdict {
  let validate = compiled.get(key)
  if (!validate) {
    try {
      validate = compile(schema)
    } catch (err) {
      return { id, unusable: err instanceof Error ? err.message : String(err) }
    }
    if (compiled.size >= MOST_COMPILED) compiled.clear()
    compiled.set(key, validate)
  }
  if (validate(value)) return { id, valid: true }
  const problems = (validate.errors ?? []).slice(0, MOST_PROBLEMS).map(inWords)
  return { id, valid: false, problems }
}

function inWords({ instancePath, message = 'is not valid', params, keyword }: ErrorObject): string {
  const where = instancePath === '' ? 'the arguments' : instancePath.slice(1).replaceAll('/', '.')
  const extra =
    keyword === 'enum'
      ? `: ${JSON.stringify(params.allowedValues)}`
      : keyword === 'additionalProperties'
        ? `: ${params.additionalProperty}`
        : ''
  return `${where} ${message}${extra}`.slice(0, 300)
}

parentPort?.on('message', (job: Job) => parentPort?.postMessage(judge(job)))
