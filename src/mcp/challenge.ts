/** Reads what a refusal asks for (RFC 6750 3, RFC 9728 5.1), for calls and for logins. */
import { extractWWWAuthenticateParams } from '@modelcontextprotocol/client'
import type { McpChallenge } from './contract.ts'

/** Null if the answer is no challenge. Its words are untrusted. */
export function challengeIn(response: Response): McpChallenge | null {
  if (response.status !== 401 && response.status !== 403) return null
  const told = response.headers.get('www-authenticate') ?? response.headers.get(AMAZONS)
  if (told === null) return null
  const headers = { 'www-authenticate': plainly(told) }
  const { scope, resourceMetadataUrl } = extractWWWAuthenticateParams(new Response(null, { headers }))
  return {
    ...(scope === undefined ? {} : { scope: scope.slice(0, 4096) }),
    ...(resourceMetadataUrl === undefined ? {} : { resource_metadata: resourceMetadataUrl.href }),
  }
}

/** What Amazon's API Gateway renames the header to (anthropics/claude-ai-mcp#748). */
const AMAZONS = 'x-amzn-remapped-www-authenticate'

/**
 * The challenge for a token as the SDK reads it: the first one, without spaces around `=` (RFC 9110 11.2 allows them),
 * in double quotes.
 */
function plainly(told: string): string {
  const [, own = told] = /(?:^|,\s{0,9})((?:bearer|dpop)\s.*)$/i.exec(told) ?? []
  return own.replace(/\s{0,9}=\s{0,9}(?=["'])/g, '=').replace(/='([^'"]*)'/g, '="$1"')
}
