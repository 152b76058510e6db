/**
 * Keeps the values that a connector gives its server out of what the server says: servers quote addresses, headers and
 * variables. Failures end up in logs and with every caller, so every value is taken out of them. In answers an owner
 * may read their own values. A configured server's values are the operator's: those that authorise Baton are taken out.
 */
import { BEARABLE, isWithin } from '../chat/json.ts'
import { authorising, endWithoutSecrets, masking, type Pair, withoutSecrets } from '../foreign.ts'
import type { McpError, McpProgress, McpResult, McpServerSpec, ToolList } from './contract.ts'

/** The values that a server is given, and may quote; `isConfigured`: by the operator */
export type Secretive = Pick<McpServerSpec, 'url' | 'headers' | 'env' | 'auth' | 'isConfigured'>

const BEARER = /\b(Bearer|Basic|DPoP)\s+[\w.~+/=-]{8,}/gi

/** Words of a failure with `***` for each value. */
export const scrubbedText = (text: string, spec: Secretive): string =>
  withoutSecrets(text, valuesOf(spec)).replace(BEARER, '$1 ***')

/** The same for the end of what a program said. */
export const scrubbedEnd = (end: string, spec: Secretive): string =>
  endWithoutSecrets(end, valuesOf(spec)).replace(BEARER, '$1 ***')

/** The failure without these values; the same object if it holds none. */
export function scrubbedFailure(failure: McpError, spec: Secretive): McpError {
  const message = scrubbedText(failure.message, spec)
  const lastWords = failure.lastWords && scrubbedText(failure.lastWords, spec)
  if (message === failure.message && lastWords === failure.lastWords) return failure
  // Its cause is dropped, since it holds the same words.
  return failure.but({ message, lastWords, cause: undefined })
}

/** Returns the list itself if nothing is to be taken out; all functions below do the same. */
export function scrubbedList<T extends Pick<ToolList, 'server' | 'tools'>>(list: T, spec: Secretive): T {
  const clean = cleanerOf(spec)
  if (!clean) return list
  // Calls need a tool's name, so it stays.
  const tools = list.tools.map((tool) => ({ ...cleaned(tool, clean), name: tool.name }))
  return { ...list, server: cleaned(list.server, clean), tools }
}

export function scrubbedProgress(progress: McpProgress, spec: Secretive): McpProgress {
  const clean = cleanerOf(spec)
  return clean ? cleaned(progress, clean) : progress
}

export function scrubbedResult(result: McpResult, spec: Secretive): McpResult {
  const clean = cleanerOf(spec)
  if (!clean) return result
  const content = result.content.map((part) => {
    if (part.type === 'text') return { ...part, text: clean(part.text) }
    return part.name === undefined ? part : { ...part, name: clean(part.name) }
  })
  const { structured } = result
  // A structure beyond these bounds is left out of the result anyway.
  if (structured === undefined || !isWithin(structured, BEARABLE)) return { ...result, content }
  return { ...result, content, structured: cleaned(structured, clean) }
}

const pairsOf = ({ url, headers = {}, env = {} }: Secretive): Pair[] => [
  ...queryOf(url),
  ...Object.entries(headers),
  ...Object.entries(env),
]

const valuesOf = (spec: Secretive): string[] => [
  ...pairsOf(spec).map(([, value]) => value),
  ...longStepsOf(spec.url),
  ...placeOf(spec),
  tokenOf(spec),
]

/** Some servers take their key in the path, where the other words are shorter. */
const longStepsOf = (url = ''): string[] =>
  URL.canParse(url) ? new URL(url).pathname.split('/').filter((step) => step.length >= 16) : []

/** What follows a configured server's host in its URL is for admins alone, and a redirection names all of it. */
function placeOf({ url, isConfigured }: Secretive): string[] {
  if (!isConfigured || url === undefined || !URL.canParse(url)) return []
  const { pathname, search } = new URL(url)
  return [pathname + search, pathname, search]
}

const tokenOf = ({ auth }: Secretive): string => auth?.held?.() ?? ''

/** Some servers take their key in the query: its values, decoded and as they were written. */
function queryOf(url: string | undefined): Pair[] {
  if (url === undefined || !URL.canParse(url)) return []
  const { search, searchParams } = new URL(url)
  const written = search.slice(1).split('&')
  return [
    ...searchParams,
    ...written.map((pair): Pair => {
      const at = pair.indexOf('=')
      return [pair.slice(0, Math.max(at, 0)), pair.slice(at + 1)]
    }),
  ]
}

type Clean = (text: string) => string

/** Null: there is nothing to take out. Every reader sees the values that a configured server shows. */
function cleanerOf(spec: Secretive): Clean | null {
  if (!spec.isConfigured) return null
  const secrets = [...authorising(pairsOf(spec)), tokenOf(spec)].filter((value) => value !== '')
  return secrets.length === 0 ? null : masking(secrets)
}

/** Cleans every text of a JSON value except the names of its fields. */
function cleaned<T>(value: T, clean: Clean): T {
  const text = JSON.stringify(value)
  if (clean(text) === text) return value
  return JSON.parse(text, (_, item) => (typeof item === 'string' ? clean(item) : item))
}
