/**
 * The door to the vendors' token endpoints and to the services that set a login up: one small request, one small
 * answer, no redirects, a time limit for the whole. No retries: a refresh token may be spent by the first try, whatever
 * came of it.
 */
import { request } from 'undici'
import { BatonError } from '../errors.ts'
import { flatHeaders, withoutSecrets } from '../foreign.ts'
import type { OAuthAnswer, OAuthCall } from '../oauth-vendor.ts'
import { type ForwardProxy, UNPACKED, upstreamAgent } from '../outbound.ts'
import { USER_AGENT } from '../version.ts'
import { timeLimit } from '../within.ts'

export interface OAuthHttp {
  /**
   * Any status is an answer. Throws upstream_timeout, upstream_disconnected. In the body of a failure
   * every secret that was sent is `***`: vendors quote them.
   */
  send(call: OAuthCall): Promise<OAuthAnswer>
  close(): Promise<void>
}

interface OAuthHttpDeps {
  forwardProxy?: ForwardProxy | null
  timeoutMs?: number
}

/** Token answers are a few KiB. */
const MAX_BODY = 1 << 20

export function createOAuthHttp(deps: OAuthHttpDeps): OAuthHttp {
  const { forwardProxy = null, timeoutMs = 15_000 } = deps
  // Without a limit of connections: the time that a request waits for one is taken from its answer's, and an answer that
  // is given up costs a login.
  const pool = upstreamAgent(forwardProxy, { keepAliveTimeout: 30_000 })
  return {
    async send(call) {
      try {
        const { statusCode, headers, body } = await request(call.url, {
          dispatcher: pool,
          method: call.method,
          headers: {
            accept: 'application/json',
            'user-agent': USER_AGENT,
            ...UNPACKED,
            ...call.headers,
            ...typeOf(call),
          },
          body: bodyOf(call),
          signal: timeLimit(timeoutMs),
        })
        const text = await read(body)
        return {
          status: statusCode,
          headers: flatHeaders(headers),
          body: statusCode < 300 ? text : withoutSecrets(text, secretsOf(call)),
        }
      } catch (thrown) {
        throw broken(thrown, timeoutMs)
      }
    },
    close: () => pool.destroy(),
  }
}

function typeOf({ form, json }: OAuthCall): Record<string, string> {
  if (form) return { 'content-type': 'application/x-www-form-urlencoded' }
  return json ? { 'content-type': 'application/json' } : {}
}

function bodyOf({ form, json }: OAuthCall): string | null {
  if (form) return new URLSearchParams(form).toString()
  return json ? JSON.stringify(json) : null
}

async function read(body: AsyncIterable<Uint8Array>): Promise<string> {
  const chunks: Uint8Array[] = []
  let size = 0
  for await (const chunk of body) {
    size += chunk.length
    if (size > MAX_BODY) throw new Error(`more than ${MAX_BODY} bytes`)
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString('utf8')
}

const PUBLIC_FIELDS = new Set([
  'grant_type',
  'client_id',
  'redirect_uri',
  'tierId',
  'cloudaicompanionProject',
])

function secretsOf({ form, json, headers }: OAuthCall): string[] {
  const sent = Object.entries({ ...form, ...json }).flatMap(([name, value]) =>
    typeof value === 'string' && !PUBLIC_FIELDS.has(name) ? [value] : [],
  )
  return headers?.authorization === undefined ? sent : [...sent, headers.authorization]
}

/** The cause may hold the request's address, never its body. */
function broken(thrown: unknown, timeoutMs: number): BatonError {
  const { name, code = name } = thrown as Error & { code?: string }
  return name === 'TimeoutError'
    ? new BatonError(
        'upstream_timeout',
        `The provider's login service did not answer within ${timeoutMs} ms.`,
      )
    : // A login that a browser ends shows and keeps the message alone.
      new BatonError('upstream_disconnected', `The provider's login service cannot be reached (${code}).`, {
        details: { reason: code },
        cause: thrown,
      })
}
