/** A whole gateway that wants keys, its operations as the OpenAPI document lists them, and owners with something of everything. */
import type { Test } from 'tap'
import { createOpenAiLogins } from '../emulators/oauth-openai.ts'
import { createOpenAiEmulator } from '../emulators/openai.ts'
import { type Answer, calling, type Document, documented, type Operation } from '../routes/document.ts'
import { bearer } from '../routes/gateway.ts'
import { scratch } from '../scratch.ts'
import { gate } from '../waiting.ts'
import { wholeGateway } from '../whole-gateway.ts'
import type { Json } from './client.ts'
import { startToolServer, textResult } from './tool-server.ts'

export const ADMIN = 'the-bootstrap-admin-key'
const json = { 'content-type': 'application/json' }

export type Call = (method: string, url: string, body?: unknown) => Promise<Answer>
/** Something of everything that an owner can have: ids by the path parameter, or the noun, that they stand for. */
export interface Property {
  call: Call
  ids: Record<string, string>
}
export type Listed = Operation & { path: string; method: string; name: string }

export async function accessWorld(t: Test) {
  const held = gate()
  const [vendor, logins, tools] = await Promise.all([
    createOpenAiEmulator(),
    createOpenAiLogins(),
    startToolServer({
      look: { annotations: { readOnlyHint: true } },
      wipe: {},
      hold: { annotations: { readOnlyHint: true }, run: () => held.opened.then(() => textResult('held')) },
    }),
  ])
  t.teardown(() => Promise.all([vendor.close(), logins.close(), tools.close()]))
  const app = await wholeGateway(t, {
    BATON_DATA_DIR: scratch(t),
    BATON_AUTH: 'keys',
    BATON_ADMIN_KEY: ADMIN,
    BATON_CONNECTORS_ALLOW_PRIVATE: 'true',
    BATON_ENABLE_OAUTH: 'openai',
    BATON_BODY_LIMIT: '64KiB',
    BATON_TURNS_PER_OWNER: '3',
    BATON_DRAIN_SECONDS: '0',
    BATON_OPENAI_BASE_URL: vendor.keyBaseUrl,
    BATON_OPENAI_OAUTH_ISSUER: logins.url,
    BATON__TOOLBOX__MCPS__0__NAME: 'shared',
    BATON__TOOLBOX__MCPS__0__TRANSPORT: 'streamable_http',
    BATON__TOOLBOX__MCPS__0__URL: tools.url,
    BATON__TOOLBOX__MCPS__0__MODE: 'dynamic',
    BATON__TOOLBOX__MCPS__0__BIND: 'manual',
    BATON__TOOLBOX__MCPS__0__DEFAULT_TOOL_CONFIG__MAX_INSTANCES: '5',
  })

  const document = JSON.parse((await app.http.inject('/openapi.json')).body) as Document
  const conforms = documented(document)
  const OPERATIONS = Object.entries(document.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({
      ...operation,
      path,
      method: method.toUpperCase(),
      name: `${method.toUpperCase()} ${path}`,
    })),
  )
  const isOpen = ({ security }: Listed) => security?.length === 0
  const guarded = OPERATIONS.filter((operation) => !isOpen(operation))

  /** Calls with a key; every JSON answer is held against the document. */
  const withKey = (key: string | null, { http } = app): Call => {
    const call = calling(http, conforms)
    const own = key === null ? {} : bearer(key)
    return (method, url, body) =>
      body === undefined
        ? call(method, url, body, own)
        : call(method, url, typeof body === 'string' ? body : JSON.stringify(body), { ...own, ...json })
  }
  const admin = withKey(ADMIN)
  async function keyOf(owner: string, more: object = {}): Promise<{ id: string; key: string }> {
    const made = await admin('POST', '/v1/keys', { owner, scopes: ['chat'], ...more })
    if (made.status !== 201) throw new Error(made.text)
    return made.body
  }

  async function propertyOf(owner: string): Promise<Property> {
    const call = withKey((await keyOf(owner)).key)
    const made = async (url: string, body: object): Promise<Json> => {
      const answer = await call('POST', url, body)
      if (answer.status >= 300) throw new Error(`${url}: ${answer.text}`)
      return answer.body
    }
    const credential = await made('/v1/credentials', {
      provider: 'openai',
      kind: 'api_key',
      api_key: 'sk-test-openai',
    })
    const connector = await made('/v1/connectors', {
      name: `of-${owner}`,
      transport: 'streamable_http',
      url: tools.url,
      require_approval: 'destructive',
      trust_annotations: true,
    })
    const chat = {
      provider: 'openai',
      model: 'gpt-5.6-sol',
      connectors: [connector.id],
      title: `${owner}'s own`,
    }
    const session = await made('/v1/sessions', chat)
    const at = `/v1/sessions/${session.id}`
    const input = `call of-${owner}__look with {}`
    const ran = await made(`${at}/turns`, { input, stream: false })
    const [execution] = (await call('GET', `/v1/tool-executions?turn_id=${ran.id}`)).body.data
    const asking = await made(`${at}/turns`, { input: `call of-${owner}__wipe with {}`, stream: false })
    const asked = asking.messages.at(-1).parts.find(({ type }: Json) => type === 'tool_call')
    const [message] = (await call('GET', `${at}/messages`)).body.data
    const ids = {
      sessions: session.id,
      turns: asking.id,
      connectors: connector.id,
      credentials: credential.id,
      'tool-executions': execution.id,
      message: message.id,
      call_id: asked.call_id,
      connector: connector.id,
      tool: `of-${owner}.look`,
      provider: 'openai',
    }
    return { call, ids }
  }

  return {
    OPERATIONS,
    admin,
    document,
    guarded,
    held,
    isOpen,
    keyOf,
    propertyOf,
    tools,
    withKey,
  }
}

/** Stands for an id that `filled` is not given. */
export const MISSING = 'x_0'

/** The path with its parameters filled in; `{id}` is of the noun that the path begins with. */
export function filled(path: string, ids: Record<string, string>): string {
  const noun = path.split('/')[2] ?? ''
  return path.replace(/\{(\w+)\}/g, (_, name: string) => ids[name === 'id' ? noun : name] ?? MISSING)
}

/** A body that the operation accepts. */
export function exampleOf({ requestBody }: Pick<Operation, 'requestBody'>): unknown {
  const content = requestBody?.content['application/json']
  if (!content) return undefined
  const [first] = Object.values((content.examples ?? {}) as Record<string, { value: unknown }>)
  return content.example ?? first?.value ?? {}
}
