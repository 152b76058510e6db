/**
 * Vendors' words with `***` for whatever looks like a key or token, of any vendor: a relay repeats what another vendor
 * said to it, with the relay's own key. The key that Baton sent is taken out by src/llm/scrub.ts, whatever it looks like.
 */
export const masked = (words: string): string => words.replace(SECRETS, '$1$2***')

/** Vendors' words as callers hear them. */
export const presentable = (words = ''): string => masked(words).trim().slice(0, 1000)

/**
 * Google repeats the key of a suspended consumer (`api_key:AIza…`). `eyJ` begins a JWT, `gAAAA` what OpenAI has encrypted.
 * "Bearer auth" and "Bearer token" are words of many a refusal: what follows is a token only if it is longer.
 */
const SECRETS =
  /(api_key:)[^\s'",]+|(\bBearer\s+)[\w.*~+/=-]{8,}|(?:sk-ant-|\b(?:sk-|rt_|eyJ|gAAAA|ya29\.))[\w.*~+/=-]+|\b(?:AIza|AQ\.)[\w-]{20,}/g
