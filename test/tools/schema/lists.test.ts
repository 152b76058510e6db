/** The tools of real servers are declared so that every provider can take them. */
import { readdirSync, readFileSync } from 'node:fs'
import { Ajv2020 } from 'ajv/dist/2020.js'
import t from 'tap'
import { DEPLOYMENTS } from '../../../providers/index.ts'
import { isRecord } from '../../../src/chat/json.ts'
import type { JsonSchema } from '../../../src/provider.ts'
import { ownNames } from '../../../src/tools/schema/adapt.ts'
import { mapSubschemas } from '../../../src/tools/schema/keywords.ts'
import { adapted, clean, faultsIn, PROFILES, sentForm, typesOf } from './targets.ts'

const FIXTURES = new URL('../../../../test/fixtures/mcp-tools/', import.meta.url)

interface Listed {
  name: string
  inputSchema: unknown
}
const read = (file: string): unknown => JSON.parse(readFileSync(new URL(file, FIXTURES), 'utf8'))
const listed = readdirSync(FIXTURES).flatMap((file) => {
  const content = read(file) as Listed[] | { tools: Listed[] }
  return Array.isArray(content) ? content : content.tools
})
/** Each is normalised and adapted once, for all tests. */
const allTools = listed.map((tool) => {
  const canonical = clean(tool.inputSchema)
  const forms = Object.entries(PROFILES).map(([name, profile]) => ({ name, ...adapted(canonical, profile) }))
  return { ...tool, canonical, forms }
})

/** Arguments that a clean schema should allow, with every property or only the required properties. */
function sample(schema: JsonSchema, root: JsonSchema, isFull: boolean, depth = 0): unknown {
  if (typeof schema.$ref === 'string') {
    const name = schema.$ref.slice('#/$defs/'.length)
    return sample((root.$defs as Record<string, JsonSchema>)[name] ?? {}, root, isFull, depth + 1)
  }
  if (schema.const !== undefined) return schema.const
  if (Array.isArray(schema.enum)) return schema.enum[0]
  const branch = ((schema.anyOf ?? schema.oneOf) as JsonSchema[] | undefined)?.[0]
  if (branch && schema.type === undefined) return sample(branch, root, isFull, depth)
  const [type] = typesOf(schema)
  if (type === 'object') {
    const properties = Object.entries((schema.properties ?? {}) as Record<string, JsonSchema>)
    const required = (schema.required ?? []) as string[]
    const kept = properties.filter(([key]) => required.includes(key) || (isFull && depth < 4))
    return Object.fromEntries(kept.map(([key, sub]) => [key, sample(sub, root, isFull, depth + 1)]))
  }
  if (type === 'array') {
    const prefix = (schema.prefixItems ?? []) as JsonSchema[]
    const count = Math.max(Number(schema.minItems ?? 0), isFull && depth < 4 ? 1 : 0)
    const kinds = Array.from(
      { length: Math.max(count, prefix.length) },
      (_, i) => prefix[i] ?? schema.items ?? {},
    )
    return kinds.map((kind) => sample(kind as JsonSchema, root, isFull, depth + 1))
  }
  if (type === 'string') return 'x'.repeat(Math.max(1, Number(schema.minLength ?? 1)))
  if (type === 'integer' || type === 'number') {
    const least = Number(
      schema.minimum ?? (schema.exclusiveMinimum === undefined ? 1 : Number(schema.exclusiveMinimum) + 1),
    )
    return Math.min(least, Number(schema.maximum ?? least))
  }
  if (type === 'boolean') return true
  return type === 'null' ? null : 'anything'
}

// Much of the time goes into compiling.
const code = { optimize: false }
const validator = new Ajv2020({ strict: false, validateFormats: false, logger: false, code })

t.test('every tool of every known list can be declared to every provider', async (t) => {
  t.ok(allTools.length > 450, 'the lists are there')
  const profiles = Object.values(PROFILES)
  for (const { deployment } of DEPLOYMENTS) t.ok(profiles.includes(deployment.schema), deployment.id)
  const faults = allTools.flatMap((tool) =>
    tool.forms.flatMap(({ name, schema }) =>
      faultsIn(schema, name).map((fault) => `${name}: ${tool.name}: ${fault}`),
    ),
  )
  t.strictSame(faults, [])
})

t.test('a clean schema and its adapted forms take what the server takes', async (t) => {
  let checked = 0
  const wrong: unknown[] = []
  const allows = (schema: JsonSchema) => {
    const validate = validator.compile(schema)
    validator.removeSchema(schema)
    return validate
  }
  for (const { canonical, forms, ...tool } of new Map(allTools.map((one) => [one.name, one])).values()) {
    const own = allows(canonical)
    const known = new Map([[JSON.stringify(canonical), own]])
    const samples = [false, true]
      .map((isFull) => sample(canonical, canonical, isFull))
      .filter((one) => own(one))
    for (const { name, schema, rename } of forms) {
      const text = JSON.stringify(schema)
      const takes = known.get(text) ?? allows(schema)
      known.set(text, takes)
      for (const value of samples) {
        const sent = sentForm(value, rename) as Record<string, unknown>
        checked++
        if (!takes(sent)) wrong.push({ name, tool: tool.name, sent, schema })
        if (JSON.stringify(ownNames(sent, rename)) !== JSON.stringify(value)) wrong.push({ tool, value })
      }
    }
  }
  t.strictSame(wrong, [])
  t.ok(checked > 1500, `${checked} samples were checked`)
})

/** The same schema with the keywords of each subschema the other way round. Names of properties keep their order. */
const turned = (schema: unknown): unknown =>
  isRecord(schema) ? Object.fromEntries(Object.entries(mapSubschemas(schema, turned)).reverse()) : schema

t.test('the order of a schema’s keywords makes no difference to its clean bytes', async (t) => {
  const changed = allTools.filter(
    ({ inputSchema, canonical }) => JSON.stringify(clean(turned(inputSchema))) !== JSON.stringify(canonical),
  )
  t.strictSame(changed, [])
})

t.test('normalising a schema twice gives the bytes of normalising it once', async (t) => {
  const changed = allTools.filter(
    ({ canonical }) => JSON.stringify(clean(canonical)) !== JSON.stringify(canonical),
  )
  t.strictSame(changed, [])
})
