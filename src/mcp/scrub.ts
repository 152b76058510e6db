/** Keeps a connector's own secrets out of what its server says: servers quote addresses, headers and variables. */
import { BEARABLE, isWithin } from '../chat/json.ts'
import { withoutSecrets } from '../foreign.ts'
import type { McpError, McpResult, McpServerSpec } from './contract.ts'

const BEARER = /\b(Bearer|Basic|DPoP)\s+[\w.~+/=-]{8,}/gi

/** What of a connector may be quoted */
export type Secretive = Pick<McpServerSpec, 'url' | 'headers' | 'env' | 'auth'>

/** The text with `***` for each of them. */
export function unspoken(text: string, { url, headers = {}, env = {}, auth }: Secretive): string {
  const secrets = [...queryOf(url), ...Object.values(headers), ...Object.values(env), auth?.held?.() ?? '']
  return withoutSecrets(text, secrets).replace(BEARER, '$1 ***')
}

/** The same failure where it holds none. */
export function scrubbed(failure: McpError, spec: Secretive): McpError {
  const message = unspoken(failure.message, spec)
  const lastWords = failure.lastWords && unspoken(failure.lastWords, spec)
  if (message === failure.message && lastWords === failure.lastWords) return failure
  // Without its cause, which holds the same words.
  return failure.but({ message, lastWords, cause: undefined })
}

/** Some servers take their key in the query: its values, as they are and as they were written. */
function queryOf(url: string | undefined): string[] {
  if (url === undefined || !URL.canParse(url)) return []
  const { search, searchParams } = new URL(url)
  const written = search.slice(1).split('&')
  return [...searchParams.values(), ...written.map((pair) => pair.slice(pair.indexOf('=') + 1))]
}

/** Others say which tenant or region is meant, and stand in many a result. */
const CREDENTIAL = /auth|key|token|secret|cookie|pass/i

/** A result without the headers that authorise Baton: a server that shows what it was sent shows them to every reader. */
export function unquoted(
  result: McpResult,
  { headers = {}, auth }: Pick<McpServerSpec, 'headers' | 'auth'>,
): McpResult {
  const own = Object.entries(headers).flatMap(([name, value]) => (CREDENTIAL.test(name) ? [value] : []))
  const secrets = [...own, auth?.held?.() ?? ''].filter((value) => value !== '')
  if (secrets.length === 0) return result
  const clean = (text: string): string => withoutSecrets(text, secrets)
  const content = result.content.map((part) =>
    part.type === 'text' ? { ...part, text: clean(part.text) } : part,
  )
  const { structured } = result
  // One beyond that is left out of the result anyway.
  if (structured === undefined || !isWithin(structured, BEARABLE)) return { ...result, content }
  const text = JSON.stringify(structured)
  if (clean(text) === text) return { ...result, content }
  const told = JSON.parse(text, (_, value) => (typeof value === 'string' ? clean(value) : value))
  return { ...result, content, structured: told }
}
