/**
 * Vendors' words with `***` for whatever looks like a key or token, of any vendor: a relay repeats what another vendor
 * said to it, with the relay's own key. The key that Baton sent is taken out by src/llm/scrub.ts, whatever it looks like.
 */
export const masked = (words: string): string => words.replace(SECRETS, '$1***')

/**
 * Google repeats the key of a suspended consumer (`api_key:AIza…`). `eyJ` begins a JWT, `gAAAA` what OpenAI has encrypted.
 */
const SECRETS =
  /(api_key:)[^\s'",]+|\b(?:sk-|rt_|eyJ|gAAAA|ya29\.|Bearer\s+)[\w.*~+/=-]+|\b(?:AIza|AQ\.)[\w-]{20,}/g
