/** Keeps a connector's own secrets out of what its server says: servers quote addresses, headers and variables. */
import { BEARABLE, isWithin } from '../chat/json.ts'
import { withoutSecrets } from '../foreign.ts'
import type { McpError, McpProgress, McpResult, McpServerSpec, ToolList } from './contract.ts'

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
  return namedQueryOf(url).map(([, value]) => value)
}

function namedQueryOf(url: string | undefined): [name: string, value: string][] {
  if (url === undefined || !URL.canParse(url)) return []
  const { search, searchParams } = new URL(url)
  const written = search.slice(1).split('&')
  return [
    ...searchParams,
    ...written.map((pair): [string, string] => {
      const at = pair.indexOf('=')
      return [pair.slice(0, Math.max(at, 0)), pair.slice(at + 1)]
    }),
  ]
}

/** Others say which tenant or region is meant, and stand in many a result. */
const CREDENTIAL = /auth|key|token|secret|cookie|pass/i
/** A database's address, for one */
const WITH_PASSWORD = /:\/\/[^/@\s]*:[^/@\s]+@/

/** A text without what authorises Baton: a server that shows what it was given shows it to every reader. */
type Clean = (text: string) => string

function cleanerOf({ url, headers = {}, env = {}, auth }: Secretive): Clean | null {
  const own = [...namedQueryOf(url), ...Object.entries(headers), ...Object.entries(env)].flatMap(
    ([name, value]) => (CREDENTIAL.test(name) || WITH_PASSWORD.test(value) ? [value] : []),
  )
  const secrets = [...own, auth?.held?.() ?? ''].filter((value) => value !== '')
  return secrets.length === 0 ? null : (text) => withoutSecrets(text, secrets)
}

/** Every text of a JSON value but the names of its fields. */
function cleaned<T>(value: T, clean: Clean): T {
  const text = JSON.stringify(value)
  if (clean(text) === text) return value
  return JSON.parse(text, (_, item) => (typeof item === 'string' ? clean(item) : item))
}

export function unquotedList<T extends Pick<ToolList, 'server' | 'tools'>>(list: T, spec: Secretive): T {
  const clean = cleanerOf(spec)
  if (!clean) return list
  // Calls go by a tool's name: it stays.
  const tools = list.tools.map((tool) => ({ ...cleaned(tool, clean), name: tool.name }))
  return { ...list, server: cleaned(list.server, clean), tools }
}

export function unquotedProgress(progress: McpProgress, spec: Secretive): McpProgress {
  return cleaned(progress, cleanerOf(spec) ?? String)
}

export function unquoted(result: McpResult, spec: Secretive): McpResult {
  const clean = cleanerOf(spec)
  if (!clean) return result
  const content = result.content.map((part) => {
    if (part.type === 'text') return { ...part, text: clean(part.text) }
    return part.name === undefined ? part : { ...part, name: clean(part.name) }
  })
  const { structured } = result
  // One beyond that is left out of the result anyway.
  if (structured === undefined || !isWithin(structured, BEARABLE)) return { ...result, content }
  return { ...result, content, structured: cleaned(structured, clean) }
}
