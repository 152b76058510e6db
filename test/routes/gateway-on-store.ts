/** The gateway of `gateway.ts` on an embedded store of its own, and bodies that tests of its routes send. */
import type { Test } from 'tap'
import { scratch } from '../scratch.ts'
import { freshStore } from '../store/fresh.ts'
import { gateway } from './gateway.ts'

export const user = (text: string) => ({ role: 'user', parts: [{ type: 'text', text }] })
export const FILES = { name: 'files', transport: 'streamable_http', url: 'https://mcp.test/mcp' }

/** The admin key of a gateway that asks for keys */
export const ADMIN = 'the-bootstrap-admin-key'
export const KEYS = { BATON_AUTH: 'keys', BATON_ADMIN_KEY: ADMIN }

const ENV = { OPENAI_API_KEY: 'sk-env-9876', BATON_ENABLE_OAUTH: 'gemini' }

export async function gatewayOnStore(t: Test, env: Record<string, string> = ENV) {
  const store = await freshStore(t, { dataDir: scratch(t) })
  const g = await gateway(store, env)
  t.teardown(() => g.close())
  const newSession = async (fields: object = {}) => {
    const asked = { provider: 'openai', model: 'm', ...fields }
    const { status, body } = await g.call('POST', '/v1/sessions', asked)
    if (status !== 201) throw new Error(`no session: ${JSON.stringify(body)}`)
    return body.id as string
  }
  return { ...g, newSession }
}
