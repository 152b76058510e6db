/** Reads what a refusal asks for (RFC 6750 3, RFC 9728 5.1), for calls and for logins. */
import { extractWWWAuthenticateParams } from '@modelcontextprotocol/client'
import type { McpChallenge } from './contract.ts'

/** Null if the answer is no challenge. Its words are untrusted. */
export function challengeIn(response: Response): McpChallenge | null {
  if (response.status !== 401 && response.status !== 403) return null
  if (!response.headers.has('www-authenticate')) return null
  const { scope, resourceMetadataUrl } = extractWWWAuthenticateParams(response)
  return {
    ...(scope === undefined ? {} : { scope: scope.slice(0, 4096) }),
    ...(resourceMetadataUrl === undefined ? {} : { resource_metadata: resourceMetadataUrl.href }),
  }
}
