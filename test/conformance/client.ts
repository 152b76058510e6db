/**
 * The client under test of the MCP conformance suite: Baton's own MCP client, driven in one generic way through
 * all scenarios. Usage: client.js <url of the scenario's server>; see `run` for the environment.
 */
import {
  type McpAuth,
  type McpChallenge,
  McpError,
  type McpServerSpec,
  type McpTool,
  type ToolList,
} from '../../src/mcp/contract.ts'
import { createMcp } from '../../src/mcp/mcp.ts'
import { createMcpOAuth, type McpLogin } from '../../src/mcp/oauth.ts'

interface ScenarioContext {
  /** A client that the login server knows already */
  client_id?: string
  client_secret?: string
  toolCalls?: { name: string; arguments?: Record<string, unknown> }[]
}

const url = process.argv.at(-1) ?? ''
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}') as ScenarioContext

// Elicitation is not declared by Baton itself; the suite wants to see that it could be answered.
const mcp = createMcp({ elicit: async () => ({ action: 'accept', content: {} }) })

// ---------------------------------------------------------------- a person who logs in wherever it is asked for

const oauth = createMcpOAuth()
const target = { name: 'conformance', url, allowPrivate: true }
const { client_id, client_secret } = context
let login: McpLogin | null = client_id
  ? { client: { client_id, ...(client_secret ? { client_secret } : {}) } }
  : null
let challenge: McpChallenge | null = null
const auth: McpAuth = {
  token: async () => login?.tokens?.access_token,
  async onUnauthorized() {
    const renewed = login && (await oauth.renew(target, login))
    if (!renewed || typeof renewed === 'string')
      throw new McpError('auth_required', renewed || 'a login is needed', { sent: false })
    login = renewed
  },
  onChallenge(heard) {
    challenge = heard
  },
}
/** One login to begin with, and one for more rights. */
const MOST_LOGINS = 2

/** Calls `run`, and logs in where it fails for lack of a login; this function plays the browser. */
async function withLogin<T>(run: () => Promise<T>): Promise<T> {
  for (let logins = 0; ; logins++) {
    try {
      return await run()
    } catch (error) {
      if (!(error instanceof McpError) || error.kind !== 'auth_required' || logins === MOST_LOGINS) throw error
      const state = crypto.randomUUID()
      const redirect_url = 'http://127.0.0.1:3000/callback'
      const client_metadata_url = 'https://conformance-test.local/client-metadata.json'
      const asked = { login, challenge, redirect_url, client_metadata_url, state }
      const { authorization_url, pending } = await oauth.begin(target, asked)
      const page = await fetch(authorization_url, { redirect: 'manual' })
      const answer = new URL(page.headers.get('location') ?? redirect_url).searchParams
      if (answer.get('state') !== state) throw new Error('the answer is not for this login')
      login = await oauth.finish(target, pending, answer)
    }
  }
}

const spec: McpServerSpec = {
  key: 'conformance',
  name: 'conformance',
  transport: 'streamable_http',
  url,
  allowPrivate: true,
  auth,
}

/** Attempts to connect: each that takes too long gives the next one twice the time (src/mcp/health.ts). */
const MOST_ATTEMPTS = 3

/** Asks again as Baton does for its sessions (src/tools/watch.ts): on a busy machine a connection may take too long. */
async function listed(attempt = 1): Promise<ToolList> {
  return mcp.list(spec, { timeoutMs: 60_000 }).catch((error) => {
    const isLate = error instanceof McpError && error.kind === 'timeout'
    if (!isLate || attempt === MOST_ATTEMPTS) throw error
    return listed(attempt + 1)
  })
}

/** A value for every required argument, so that a call passes the server's own check of its input. */
function argumentsFor(tool: McpTool): Record<string, unknown> {
  const samples: Record<string, unknown> = { integer: 1, number: 1, boolean: true, array: [], object: {} }
  const properties = (tool.inputSchema.properties ?? {}) as Record<string, { type?: string }>
  return Object.fromEntries(
    Object.entries(properties).map(([name, { type }]) => [name, samples[type ?? 'string'] ?? 'text']),
  )
}

try {
  mcp.interest(spec, 60_000)
  const { tools } = await withLogin(() => listed())
  const calls = context.toolCalls ?? tools.map((tool) => ({ name: tool.name, arguments: argumentsFor(tool) }))
  for (const call of calls) {
    const options = { timeoutMs: 10_000, maxTotalMs: 20_000, signal: new AbortController().signal }
    const run = () => mcp.call(spec, call.name, call.arguments ?? {}, options)
    const result = await withLogin(run).catch((error) => {
      // A refused call is an answer; the suite judges what the server saw.
      if (error instanceof McpError) return error.message
      throw error
    })
    console.log(call.name, JSON.stringify(result))
  }
} finally {
  await mcp.close()
  await oauth.close()
}
