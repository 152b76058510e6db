/** Login files of vendors' own tools, taken over: read, completed, and stored as credentials. */
import { isRecord } from '../chat/json.ts'
import { invalid } from '../errors.ts'
import type { LoginSecret } from '../oauth-vendor.ts'
import type { Scope } from '../store/store.ts'
import type { AddLogin, CredentialView } from './credentials.ts'
import { codeRefused, endOf, merged, readTokens } from './login-answer.ts'
import type { LoginRow, LoginTable } from './login-table.ts'
import { type OAuthHttp, setUp } from './oauth-http.ts'

/**
 * Takes over a login file, given as its text or its JSON. The warning says what that means for the tool
 * that made it. Throws oauth_not_enabled, invalid_request, what a setup throws.
 */
export type ImportFile = (
  caller: Scope,
  file: { provider: string; format: string; content: unknown; project_id?: string },
) => Promise<CredentialView & { warning: string }>

/** What can stand in an HTTP header, as schemas have it: a secret, and what is sent beside it. */
export const SECRET_FORM = { minLength: 1, maxLength: 16_384, pattern: '^[\\x21-\\x7e]+$' } as const
export const FACT_FORM = { ...SECRET_FORM, maxLength: 256 } as const

export interface ImportDeps {
  table: LoginTable
  http: OAuthHttp
  add(owner: string, login: Omit<AddLogin, 'default'>): Promise<CredentialView>
  sleep(ms: number): Promise<unknown>
  now(): number
}

export function createImport({ table, http, add, sleep, now }: ImportDeps): ImportFile {
  /**
   * A vendor with a setup is asked with the token at once, so a spent one is renewed first. (Where refresh
   * tokens are used once there is no setup: those are stored before they are renewed.)
   */
  async function fresh(
    row: LoginRow,
    secret: LoginSecret,
    expires_at: string | null,
  ): Promise<{ secret: LoginSecret; expires_at: string | null }> {
    const isSpent =
      secret.access_token === undefined || (expires_at !== null && Date.parse(expires_at) <= now())
    const call = isSpent && row.vendor.setup ? row.vendor.renew(row.settings, secret) : null
    if (!call) return { secret, expires_at }
    const answer = await http.send(call)
    const tokens = readTokens(row, answer)
    if (!tokens?.access_token) throw codeRefused(row, answer, 'content')
    const next = merged(secret, tokens)
    return { secret: next, expires_at: endOf(row, next, tokens, now()) }
  }

  return async (caller, file) => {
    const row = table.row(file.provider)
    const read = row.vendor.imports[file.format]
    if (!read) {
      const known = Object.keys(row.vendor.imports).join(', ')
      const words = `format must be one of ${known} for ${file.provider}.`
      throw invalid('format', words)
    }
    const { warning, ...login } = read(contentOf(file.content))
    assertForm(login.secret, SECRET_FORM)
    assertForm(login.facts, FACT_FORM)
    const { secret, expires_at } = await fresh(row, login.secret, login.expires_at ?? null)
    const facts: Record<string, string> = { ...login.facts }
    if (file.project_id !== undefined) facts.project_id = file.project_id
    if (row.vendor.setup?.isNeeded(facts)) {
      const accessToken = secret.access_token ?? ''
      Object.assign(facts, await setUp(row, { accessToken, facts }, { http, sleep }))
    }
    const name = login.name ?? null
    const view = await add(caller.owner, { provider: file.provider, secret, facts, expires_at, name })
    return { ...view, warning }
  }
}

/** As POST /v1/credentials has it of what is given there. */
function assertForm(texts: object, { maxLength, pattern }: { maxLength: number; pattern: string }): void {
  const form = new RegExp(pattern)
  for (const [name, text] of Object.entries(texts)) {
    if (typeof text !== 'string' || (form.test(text) && text.length <= maxLength)) continue
    const words = `The file's ${name} must be printable ASCII without spaces, of at most ${maxLength} characters.`
    throw invalid('content', words)
  }
}

function contentOf(content: unknown): Record<string, unknown> {
  let value = content
  if (typeof content === 'string') {
    try {
      // Editors of Windows put a byte order mark before it.
      value = JSON.parse(content.replace(/^\uFEFF/, ''))
    } catch {
      throw invalid('content', "content is not JSON: give the login file's text.")
    }
  }
  if (isRecord(value)) return value
  throw invalid('content', 'content must be a JSON object: a login file.')
}
