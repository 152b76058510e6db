/**
 * Finds secrets in arguments, results and errors before they are written to the ledger, stored outputs or
 * logs. A maintained rule set does the finding (secretlint's recommended preset); a few patterns that it
 * misses stand beside it. Time is bounded: long texts go through in slices, with the event loop between.
 */
import { setImmediate as breathe } from 'node:timers/promises'
import { lintSource } from '@secretlint/core'
import { creator } from '@secretlint/secretlint-rule-preset-recommend'

/** Stands where a secret was. */
export const MASK = '[redacted]'

/** What secretlint's preset misses, by trial: shapes with a prefix that nothing else has. */
const OWN = new RegExp(
  [
    /\bsk-(?:proj-|svcacct-|admin-|ant-)?[A-Za-z0-9_-]{20,}/, // OpenAI, Anthropic
    /\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b/, // AWS key ids, examples included
    /\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{40,})/,
    /\bxox[abeoprs]-[A-Za-z0-9-]{10,}/, // Slack
    /\bxapp-[A-Za-z0-9-]{20,}/,
    /\bAIza[A-Za-z0-9_-]{30,}/, // Google API keys
    /\bya29\.[A-Za-z0-9_-]{20,}/, // Google access tokens
    /\bglpat-[A-Za-z0-9_-]{20,}/, // GitLab
    /\bnpm_[A-Za-z0-9]{36}\b/,
    /\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}/, // Stripe
    /\bbk_[A-Za-z0-9_-]{40,}/, // our own keys
    /\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}/, // JWT
    /-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:[^-]|-(?!----)){0,20000}(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|$)/,
    /\b[a-z][a-z0-9+.-]{1,20}:\/\/[^\s:@/'"]{1,200}:[^\s@/'"]{1,200}@(?=[^\s])/, // passwords in URLs
    /(?<=\b[Bb]earer\s)[A-Za-z0-9._~+/=-]{20,}/,
    /(?<=(?:aws_secret_access_key|AWS_SECRET_ACCESS_KEY|SecretAccessKey)["'\s]{0,5}[=:]["'\s]{0,5})[A-Za-z0-9/+]{40}/,
  ]
    .map(({ source }) => source)
    .join('|'),
  'g',
)

/** A field with such a name holds a secret, whatever it looks like. */
const SECRET_NAME =
  /^(?:.*[_-])?(?:password|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|client[_-]?secret|secret[_-]?(?:access[_-]?)?key|access[_-]?token|refresh[_-]?token|authorization)$/i

/** The same in JSON text: such a name with a text that is not empty. */
const NAMED_SECRET =
  /"(?:[^"]{0,200}[_-])?(?:password|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|access[_-]?token|refresh[_-]?token|authorization)"\s*:\s*"[^"]/i

const SLICE = 200_000
/** Longer than any secret that a slice's border could cut. */
const OVERLAP = 25_000

export interface Redacted<T> {
  value: T
  /** True when something was replaced */
  found: boolean
}

/**
 * Whether JSON text holds a secret, at once and by our own patterns alone: what decides that a part is
 * sealed at rest, where a false alarm costs nothing.
 */
export function hasSecret(json: string): boolean {
  OWN.lastIndex = 0
  return OWN.test(json) || NAMED_SECRET.test(json)
}

/** Replaces the secrets of a text. */
export async function redactText(text: string): Promise<Redacted<string>> {
  // Nothing shorter is a secret that a rule could know.
  if (text.length < 12) return { value: text, found: false }
  const ranges: Range[] = []
  for (let at = 0; at < text.length; at += SLICE - OVERLAP) {
    const slice = text.slice(at, at + SLICE)
    for (const [from, to] of await secretsIn(slice)) ranges.push([at + from, at + to])
    if (at + SLICE >= text.length) break
    await breathe()
  }
  return { value: masked(text, ranges), found: ranges.length > 0 }
}

/** Replaces the secrets in every string of a JSON value, names of fields included. */
export async function redactJson<T>(value: T): Promise<Redacted<T>> {
  let found = false
  const walk = async (item: unknown, name = ''): Promise<unknown> => {
    if (typeof item === 'string') {
      if (item !== '' && SECRET_NAME.test(name)) {
        found = true
        return MASK
      }
      const result = await redactText(item)
      found ||= result.found
      return result.value
    }
    if (Array.isArray(item)) {
      const list: unknown[] = []
      for (const one of item) list.push(await walk(one, name))
      return list
    }
    if (typeof item !== 'object' || item === null) return item
    const pairs: [string, unknown][] = []
    for (const [key, one] of Object.entries(item)) pairs.push([String(await walk(key)), await walk(one, key)])
    return Object.fromEntries(pairs)
  }
  // The walk keeps the shape: only strings change.
  return { value: (await walk(value)) as T, found }
}

type Range = [from: number, to: number]

const CONFIG = {
  rules: [{ id: '@secretlint/secretlint-rule-preset-recommend', rule: creator, options: {} }],
}

async function secretsIn(slice: string): Promise<Range[]> {
  const own = [...slice.matchAll(OWN)].map((match): Range => [match.index, match.index + match[0].length])
  const linted = await lintSource({
    source: { filePath: 'text.txt', content: slice, contentType: 'text' },
    options: { config: CONFIG, maskSecrets: false },
  })
  return [...own, ...linted.messages.map(({ range }): Range => [range[0], range[1]])]
}

function masked(text: string, ranges: Range[]): string {
  let out = ''
  let at = 0
  for (const [from, to] of ranges.sort(([a], [b]) => a - b)) {
    if (to <= at) continue
    out += from >= at ? text.slice(at, from) + MASK : ''
    at = to
  }
  return out + text.slice(at)
}
