/**
 * An authorization server on loopback: the part that every vendor's login has in common. It checks requests as strictly
 * as OAuth 2.1 asks (exact redirect address, PKCE with S256, codes used once), and hands out numbered tokens. The
 * vendors' own addresses, bodies and failures are in oauth-<vendor>.ts.
 */
import { createHash } from 'node:crypto'
import { type Emulator, type JsonReply, type Recorded, type Reply, serve } from './http.ts'

/** The failures that each vendor answers in its own words. */
export type Failure =
  | 'client'
  | 'client_secret'
  | 'code'
  | 'redirect_uri'
  | 'verifier'
  | 'refresh_token'
  | 'spent'
  | 'grant_type'

export class Refused extends Error {
  readonly failure: Failure
  constructor(failure: Failure) {
    super(failure)
    this.failure = failure
  }
}

interface Client {
  id: string
  secret?: string
  isRedirect(uri: string): boolean
}

/** A person's grant. All tokens of one login belong to it. */
interface Grant {
  serial: number
  scope: string
  state: string
}
export interface Tokens {
  access: string
  refresh: string
  grant: Grant
}

interface Code {
  isUsed: boolean
  redirect_uri: string
  challenge: string
  grant: Grant
}

interface Issuer {
  /** The redirect with a code, or a 400 page if the client or its address is wrong. */
  authorize(request: Recorded, check: (query: URLSearchParams) => string | null): JsonReply
  /** Throws Refused. */
  redeem(fields: Readonly<Record<string, unknown>>): Tokens
  /** A new access token for a refresh token, and with `rotate` a new refresh token. Throws Refused. */
  renew(fields: Readonly<Record<string, unknown>>, rotate: boolean): Tokens
  /** A code with a PKCE pair that the server makes, as device logins have it. */
  issueCode(redirect_uri: string): { code: string; challenge: string; verifier: string }
  isLive(access: string): boolean
}

interface IssuerControl {
  /** From now on every authorization is declined; null: granted again. */
  decline(error: string | null, description?: string): void
  /** From now on the refresh token, and the tokens that it renewed, are invalid. */
  revoke(refresh: string): void
  /** Marks a refresh token as used, as if its answer had been lost. */
  spend(refresh: string): void
  /** Refresh tokens that were issued and are not used. */
  live(): string[]
  /** How many renewals there were, without refused ones. */
  renewals(): number
}

interface IssuerOptions {
  client: Client
  /** Makes a token in the vendor's form */
  access(serial: number, grant: Grant): string
  refresh(serial: number): string
  /** Parameters added to the redirect besides code and state */
  extra?(state: string): Record<string, string>
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('base64url')

export function createIssuer(options: IssuerOptions): Issuer & IssuerControl {
  const { client } = options
  const codes = new Map<string, Code>()
  const refresh = new Map<string, { grant: Grant; state: 'live' | 'spent' | 'revoked' }>()
  const access = new Map<string, Grant>()
  const revoked = new Set<Grant>()
  let serial = 0
  let renewals = 0
  let declined: { error: string; description: string | undefined } | null = null

  const issue = (grant: Grant, kept?: string): Tokens => {
    const number = ++serial
    const tokens = { access: options.access(number, grant), refresh: kept ?? options.refresh(number), grant }
    access.set(tokens.access, grant)
    refresh.set(tokens.refresh, { grant, state: 'live' })
    return tokens
  }
  const checkClient = (fields: Readonly<Record<string, unknown>>) => {
    if (fields.client_id !== client.id) throw new Refused('client')
    if (client.secret === undefined) return
    if (fields.client_secret === undefined) throw new Refused('client_secret')
    if (fields.client_secret !== client.secret) throw new Refused('client')
  }

  return {
    authorize(request, check) {
      const query = new URL(request.path, 'http://emulator').searchParams
      const redirect = query.get('redirect_uri') ?? ''
      if (query.get('client_id') !== client.id) return page('unknown client')
      if (!client.isRedirect(redirect)) return page(`redirect_uri_mismatch: ${redirect}`)
      const problem = check(query) ?? problemOf(query)
      if (problem !== null) return page(problem)
      const state = query.get('state') ?? ''
      const back = new URL(redirect)
      const answer: Record<string, string> = {}
      if (declined) {
        answer.error = declined.error
        if (declined.description) answer.error_description = declined.description
      } else {
        const grant = { serial: ++serial, scope: query.get('scope') ?? '', state }
        answer.code = `code-${grant.serial}-${sha256(state).slice(0, 12)}`
        codes.set(answer.code, {
          isUsed: false,
          redirect_uri: redirect,
          challenge: query.get('code_challenge') ?? '',
          grant,
        })
      }
      for (const [name, value] of Object.entries({ ...answer, state, ...options.extra?.(state) })) {
        back.searchParams.set(name, value)
      }
      return { status: 302, headers: { location: back.href }, body: '' }
    },
    redeem(fields) {
      checkClient(fields)
      const code = typeof fields.code === 'string' ? fields.code : ''
      const found = codes.get(code)
      if (!found) throw new Refused('code')
      if (found.isUsed) {
        // A code that is used twice was stolen: its tokens become invalid (RFC 6749 section 4.1.2).
        revoked.add(found.grant)
        throw new Refused('code')
      }
      found.isUsed = true
      if (fields.redirect_uri !== found.redirect_uri) throw new Refused('redirect_uri')
      const verifier = typeof fields.code_verifier === 'string' ? fields.code_verifier : ''
      if (!/^[\w.~-]{43,128}$/.test(verifier) || sha256(verifier) !== found.challenge) {
        throw new Refused('verifier')
      }
      // The verifier was in an address that others may have seen (CVE-2026-34511).
      if (verifier === found.grant.state) throw new Refused('verifier')
      return issue(found.grant)
    },
    renew(fields, rotate) {
      checkClient(fields)
      const token = typeof fields.refresh_token === 'string' ? fields.refresh_token : ''
      const found = refresh.get(token)
      if (!found || found.state === 'revoked' || revoked.has(found.grant)) throw new Refused('refresh_token')
      if (found.state === 'spent') throw new Refused('spent')
      if (rotate) found.state = 'spent'
      renewals++
      return issue(found.grant, rotate ? undefined : token)
    },
    issueCode(redirect_uri) {
      const grant = { serial: ++serial, scope: 'device', state: '' }
      const verifier = sha256(`verifier ${serial}`)
      const code = `device-code-${serial}`
      codes.set(code, { isUsed: false, redirect_uri, challenge: sha256(verifier), grant })
      return { code, challenge: sha256(verifier), verifier }
    },
    isLive(token) {
      const grant = access.get(token)
      return grant !== undefined && !revoked.has(grant)
    },
    decline(error, description) {
      declined = error === null ? null : { error, description }
    },
    revoke(token) {
      const found = refresh.get(token)
      if (found) revoked.add(found.grant)
    },
    spend(token) {
      const found = refresh.get(token)
      if (found) found.state = 'spent'
    },
    live: () => [...refresh].flatMap(([token, { state }]) => (state === 'live' ? [token] : [])),
    renewals: () => renewals,
  }
}

/** What is wrong with a request of the right client and address. None of these fields may be missing. */
function problemOf(query: URLSearchParams): string | null {
  if (query.get('response_type') !== 'code') return 'response_type must be code'
  if (query.get('code_challenge_method') !== 'S256') return 'code_challenge_method must be S256'
  if (!/^[\w-]{43}$/.test(query.get('code_challenge') ?? '')) return 'code_challenge is no SHA-256'
  if ((query.get('state') ?? '').length < 22) return 'state is too short'
  return null
}

const page = (words: string): JsonReply => ({ status: 400, body: `<h1>400</h1><p>${words}</p>` })

export const formOf = ({ headers, text }: Recorded): Record<string, string> | null =>
  headers['content-type']?.startsWith('application/x-www-form-urlencoded')
    ? Object.fromEntries(new URLSearchParams(text))
    : null
export const jsonOf = ({ headers, body }: Recorded): Record<string, unknown> | null =>
  headers['content-type']?.startsWith('application/json') && typeof body === 'object' && body !== null
    ? (body as Record<string, unknown>)
    : null

/** A JWT with these claims. Its signature is made up: nobody here has a key. */
export const jwt = (claims: Record<string, unknown>): string =>
  [{ alg: 'RS256', typ: 'JWT' }, claims]
    .map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
    .concat('c2lnbmF0dXJl')
    .join('.')

/** Obstacles before the next answers of a token endpoint. Each is used once, oldest first. */
interface Obstacles {
  /** Answers with this reply, without a look at the request */
  answer(reply: JsonReply): void
  /** The endpoint does its work, and its answer is lost: the socket is cut */
  lose(): void
  /** Holds the next answer after the work is done, until the promise settles */
  hold(until: Promise<unknown>): void
  /** Does nothing for the next request until the promise settles, and then cuts its socket */
  stall(until: Promise<unknown>): void
}

export interface LoginEmulator extends Emulator, IssuerControl, Obstacles {
  /** Requests to the token endpoint so far */
  tokenRequests(): Recorded[]
  isLive(access: string): boolean
}

const CUT: Reply = { stream: [], ending: 'cut', headers: { 'content-type': 'application/json' } }

/**
 * Serves a vendor's routes, `POST /path` → answer. A Refused that a route throws is answered in the vendor's words.
 * Obstacles are met before the route at `tokenPath`.
 */
export async function serveLogins(
  issuer: Issuer & IssuerControl,
  tokenPath: string,
  failures: Record<Failure, JsonReply>,
  route: (request: Recorded, path: string) => Reply | Promise<Reply>,
): Promise<LoginEmulator> {
  const obstacles: ((work: () => Promise<Reply>) => Promise<Reply>)[] = []
  const server = await serve(async (request) => {
    const { pathname } = new URL(request.path, 'http://emulator')
    const work = async () => {
      try {
        return await route(request, `${request.method} ${pathname}`)
      } catch (thrown) {
        if (thrown instanceof Refused) return failures[thrown.failure]
        throw thrown
      }
    }
    if (pathname !== tokenPath) return work()
    const obstacle = obstacles.shift()
    return obstacle ? obstacle(work) : work()
  })
  return {
    ...issuer,
    ...server,
    tokenRequests: () => server.requests.filter(({ path }) => path.split('?')[0] === tokenPath),
    answer: (reply) => void obstacles.push(async () => reply),
    lose: () =>
      void obstacles.push(async (work) => {
        await work()
        return CUT
      }),
    stall: (until) =>
      void obstacles.push(async () => {
        await until
        return CUT
      }),
    hold: (until) =>
      void obstacles.push(async (work) => {
        const reply = await work()
        await until
        return reply
      }),
  }
}
