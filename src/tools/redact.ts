/**
 * Finds secrets in arguments, results and errors before they are written to the ledger, stored outputs or logs. A
 * maintained rule set does the finding (secretlint's recommended preset); rules for what it misses are added here. Time
 * is bounded: long texts go through in slices, with the event loop between, and many short ones do, too.
 */
import { isHeld, yieldToEventLoop } from '../within.ts'

/** Takes a secret's place. */
export const MASK = '[redacted]'

/** What the names of secrets end with. */
const NAMES =
  'password|passwd|passphrase|_pwd|secret|(?:access|admin|api|private|secret)[_-]?key|encryption[_-]?keys?|(?:access|api|auth|bot|id|refresh|session)[_-]?token|authorization'

/**
 * Escapes whose last letter or digit is no part of a word: `\\n` and `\\u003e` in JSON text, `%3D`, a terminal's
 * colour.
 */
const ESCAPE = String.raw`\\|\\u[\dA-Fa-f]{3}|%[\dA-Fa-f]|[\x1bbB]\[|\[[\d;]{1,19}`

/** The rule, unless such a character precedes it that does not end an escape. */
const after = (character: string, { source }: RegExp) =>
  new RegExp(`(?<!(?<!${ESCAPE})${character})${source}`)

/** The rule, at the beginning of a word. */
const token = (rule: RegExp) => after('[A-Za-z]', rule)

/** Matches the words in any case: a flag would hold for the whole rule. */
const anyCase = (words: string): string =>
  words.replace(/[a-z]/g, (letter) => `[${letter}${letter.toUpperCase()}]`)

const WEBHOOK = anyCase(String.raw`https://hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/`)
const DATABASE = `(?:${anyCase('mongodb|mysql|postgres')})[A-Za-z+]{0,4}://`
const VARIABLE = `(?:${NAMES.toUpperCase()}|COOKIE)=`
/**
 * A variable's value in quotes, where the closing one follows: a passphrase has blanks. In a program, as in
 * `"PASSWORD=" + word`, no word begins there. No control characters: `hasSecret` reads a tab as a line's end.
 */
const inQuotes = (quote: string) => {
  const inside = String.raw`[^${quote}\\\x00-\x1f]`
  return String.raw`(?<=${quote})(?=[\w\x80-\uffff]${inside}{3,999}\\?${quote})${inside}{4,}`
}
const PARAMETER = String.raw`[?&][\w.-]{0,40}(?:${anyCase(NAMES)})=`
/** A header, as programs print it */
const BASIC = String.raw`[Aa]uthorization["'\\]{0,4}\s?[:=]\s?["'\\]{0,4}[Bb]asic\s`
/** Fields that hold a secret, whatever it looks like: how their names end, and how their values must begin. */
const FIELDS = [
  [anyCase(NAMES), ''],
  // npm has a package of this name, and package files have its version there.
  [anyCase('cookie'), String.raw`(?=[\w.-]{1,99}=)`],
  // `pwd` is often a directory; `PWD` always is.
  ['[pP]wd', '(?![~/])'],
] as const
/** What stands between a field's name and its value in JSON text */
const between = (quote: string) => String.raw`${quote}\s{0,9}:\s{0,9}${quote}`
/** The same, where the value is a list of texts */
const LIST = String.raw`"\s{0,9}:\s{0,9}\[\s{0,99}"`
/** Where such a field's value begins, behind what stands `between` */
const field = (between: string) =>
  FIELDS.map(([name, begins]) => `(?<=(?:${name})${between})${begins}`).join('|')

const AWS_SECRET = /[Ss](?:ecret|ECRET)_?(?:[Aa](?:ccess|CCESS)_?)?[Kk](?:ey|EY)/
const AWS_SESSION = /[Ss](?:ession|ESSION)_?[Tt](?:oken|OKEN)/

/**
 * A value that is set to a name. It looks back only from where a value may begin: from everywhere in a long text it
 * would take seconds.
 */
function named(name: RegExp, { source }: RegExp): RegExp {
  const begins = String.raw`(?<=["'\s\\=>:])(?=${source.replace(',}', '}')})`
  const blanks = String.raw`["'\s\\]{0,99}`
  return new RegExp(`${begins}(?<=${name.source}${blanks}(?:=>?|[:>])${blanks})${source}`)
}

/**
 * These find all that secretlint's preset finds, since `hasSecret` uses only these (test/tools/redact-oracle.test.ts),
 * and what trials showed that the preset misses: shapes with a prefix that nothing else has. `sign` is a part of every
 * match: looking for it first takes a tenth of the time. `before`, for rules whose sign most texts have, is what
 * precedes each match: looking back only from there takes a tenth of the time, too.
 */
const RULES: readonly (readonly [sign: RegExp, rule: RegExp, before?: string])[] = [
  // OpenAI, Anthropic. The mark in the middle of OpenAI's keys identifies them, wherever they begin.
  [/sk-/, token(/sk-[A-Za-z0-9_-]{20,}/)],
  [/T3BlbkFJ/, /sk-[A-Za-z0-9_-]{20,90}T3BlbkFJ[A-Za-z0-9_-]{20,}/],
  [
    /A(?:[KS]IA|BIA|CCA|GPA|IDA|ROA|[IN]PA|NVA|3T)/,
    token(/A(?:[KS]IA|BIA|CCA|GPA|IDA|ROA|[IN]PA|NVA|3T[A-Z0-9])[A-Z0-9]{16}(?![A-Z0-9])/), // AWS key ids, examples included
  ],
  // An app's installation token is `ghs_<app>_<JWT>` since April 2026 (github.blog/changelog, 2026-05-15).
  [
    /gh[pousr]_|github_pat_/,
    token(/(?:gh[pour]_[A-Za-z0-9_]{30,}|ghs_[A-Za-z0-9._-]{30,}|github_pat_[A-Za-z0-9_]{40,})/),
  ],
  [/xox|xapp-/, token(/(?:xox[a-eprs]|xapp)-[A-Za-z0-9%/+=-]{3,}/)], // Slack; browsers' tokens (xoxd) are percent-encoded
  [/xoxo-/, token(/xoxo-[A-Za-z0-9]{1,40}-[A-Za-z0-9-]{1,}/)], // Slack, too, and a greeting
  [new RegExp(WEBHOOK), new RegExp(`${WEBHOOK}[A-Za-z0-9/_-]{7,}`)],
  [/AIza/, token(/AIza[A-Za-z0-9_-]{30,}/)], // Google API keys
  [/ya29\./, token(/ya29\.[A-Za-z0-9_-]{20,}/)], // Google access tokens
  [/glpat-/, token(/glpat-[A-Za-z0-9_-]{20,}/)], // GitLab
  [/npm_/, token(/npm_[A-Za-z0-9_]{36,}/)],
  [/_authToken=/, /(?<=_authToken=(?:\\?["'])?)(?!\$)[^\s"'\\]{8,}/], // .npmrc
  [/SG\./, token(/SG\.[A-Za-z0-9_-]{1,128}\.[A-Za-z0-9_-]{2,}/)], // SendGrid
  [/shp(?:at|ca|pa|ss)_/, token(/shp(?:at|ca|pa|ss)_[A-Za-z0-9]{32,}/)], // Shopify
  [/lin_api_/, token(/lin_api_[A-Za-z0-9_]{32,}/)], // Linear
  [/ops_ey/, token(/ops_ey[A-Za-z0-9+/=]{100,}/)], // 1Password
  [/gsk_/, token(/gsk_[A-Za-z0-9]{50,}/)], // Groq
  [/hf_/, token(/hf_[A-Za-z0-9]{34,}/)], // Hugging Face
  [/ntn_/, token(/ntn_[0-9]{11}[A-Za-z0-9]{35,}/)], // Notion
  [/glc_|glsa_/, token(/(?:glc_[A-Za-z0-9+/]{32,}={0,2}|glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8,})/)], // Grafana
  [/hv[brs]\./, token(/hv[brs]\.[A-Za-z0-9_-]{24,}/)], // Vault; a root token has 24 characters, which the preset leaves
  [/vc[aikpr]_/, token(/vc[aikpr]_[A-Za-z0-9]{20,}/)], // Vercel
  [/dapi/, token(/dapi[A-Fa-f0-9]{32,}(?:-[0-9])?/)], // Databricks
  [/dckr_/, token(/dckr_[op]at_[A-Za-z0-9_-]{27,}/)], // Docker, of a person and of an organization
  [/figd_/, token(/figd_[A-Za-z0-9_-]{40,}/)], // Figma
  [/[rs]k_(?:live|test)_/, token(/[rs]k_(?:live|test)_[A-Za-z0-9]{16,}/)], // Stripe
  [/bk_/, token(/bk_[A-Za-z0-9_-]{40,}/)], // our own keys
  // JWT. No other such character may stand before it, else "eyJ-eyJ-…" takes quadratic time.
  [
    /eyJ/,
    after('[A-Za-z0-9_-]', /eyJ[A-Za-z0-9_-]{8,8192}\.eyJ[A-Za-z0-9_-]{8,16384}\.[A-Za-z0-9_-]{8,2048}/),
  ],
  [
    /PRIVATE KEY/,
    /-----BEGIN[A-Z0-9 ]{0,41}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!----)){0,20000}(?:-----END[A-Z0-9 ]{0,41}PRIVATE KEY(?: BLOCK)?-----|$)/,
  ],
  // Passwords in URLs. A database's password is often written unescaped, with any characters in it.
  [/:\/\/[^\s:@/'"]{0,256}:[^\s@/'"]{1,256}@/, /(?<=:\/\/)[^\s:@/'"]{0,256}:[^\s@/'"]{1,256}(?=@\S)/],
  [
    new RegExp(DATABASE),
    new RegExp(String.raw`(?<=${DATABASE})[^:/\s]{1,100}:[^@/\s]{1,200}@\S[^\s'"]{0,700}`),
  ],
  [/[Bb]earer\s/, new RegExp(String.raw`(?<=${token(/[Bb]earer/).source}\s)[A-Za-z0-9._~+/=-]{20,}`)],
  [new RegExp(BASIC), new RegExp(`(?<=${BASIC})[A-Za-z0-9+/=]{4,}`)],
  // Parameters of a URL or a form
  [new RegExp(PARAMETER), new RegExp(String.raw`(?<=${PARAMETER})[^\s"'\\&#$<{][^\s"'\\&#]{3,}`)],
  // Variables of an environment
  [
    new RegExp(VARIABLE),
    new RegExp(
      String.raw`(?<=${VARIABLE}(?:\\?["'])?)(?!\$)(?:${inQuotes('"')}|${inQuotes("'")}|[^\s"'\\]{4,})`,
    ),
  ],
  // AWS. The preset's rule lets the secret begin at its name, and so leaves as many characters of its end in the clear.
  [AWS_SECRET, named(AWS_SECRET, /[A-Za-z0-9/+=]{40,}/)],
  [AWS_SESSION, named(AWS_SESSION, /[A-Za-z0-9/+=]{100,}/)],
  // Fields, also of JSON inside a JSON string
  [
    /"\s{0,9}:\s{0,9}"[^"]/,
    new RegExp(String.raw`(?:${field(between('"'))})(?:[^"\\]|\\.){1,}`),
    between('"'),
  ],
  [
    /"\s{0,9}:\s{0,9}\[\s{0,99}"[^"]/,
    new RegExp(String.raw`(?:${field(LIST)})(?:[^"\\]|\\.){1,}(?:"\s{0,99},\s{0,99}"(?:[^"\\]|\\.){0,}){0,}`),
    LIST,
  ],
  [
    /\\"\s{0,9}:\s{0,9}\\"/,
    new RegExp(String.raw`(?:${field(between(String.raw`\\"`))})(?:[^"\\]|\\\\\\?.){1,}`),
    between(String.raw`\\"`),
  ],
]

const SECRET_FIELDS = FIELDS.map(
  ([name, begins]) => [new RegExp(`(?:${name})$`), new RegExp(`^${begins}`)] as const,
)
const isSecret = (name: string, text: string): boolean =>
  SECRET_FIELDS.some(([ends, begins]) => ends.test(name) && begins.test(text))

const SLICE = 200_000
/** Longer than any secret that a slice's end could cut: a JWT of RULES has up to 26,632 characters. */
const OVERLAP = 30_000

/**
 * Whether JSON text holds a secret; synchronous, by our own rules alone. It decides whether a part is sealed at rest,
 * where a false alarm costs nothing.
 */
export function hasSecret(json: string): boolean {
  if (holdsSecret(json)) return true
  // JSON inside a text has its quotes, line breaks and tabs escaped: some patterns look for them as they are.
  return json.includes('\\') && holdsSecret(unescaped(json))
}

const [NEWLINE, MARK, QUOTE, TWO, BACKSLASH, UNICODE] = [0x0a, 0x21, 0x22, 0x32, 0x5c, 0x75]
/** Letters that stand for whitespace after a backslash: n, r, t. */
const BLANKS: readonly (number | undefined)[] = [0x6e, 0x72, 0x74]

/**
 * The text with its quotes unescaped, a line break for each escaped whitespace, a mark for other escapes, and no
 * backslashes. It works byte by byte: millions of replacements would take seconds. Characters beyond ASCII, where no
 * pattern looks, are not kept.
 */
function unescaped(json: string): string {
  const bytes = Buffer.from(json)
  let to = 0
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at] ?? 0
    if (byte !== BACKSLASH) {
      bytes[to++] = byte
      continue
    }
    const next = bytes[at + 1]
    if (next === BACKSLASH) continue
    if (next === QUOTE || BLANKS.includes(next)) {
      bytes[to++] = next === QUOTE ? QUOTE : NEWLINE
      at++
    } else if (next === UNICODE) {
      // .NET writes a quote as \u0022.
      bytes[to++] = bytes[at + 4] === TWO && bytes[at + 5] === TWO ? QUOTE : MARK
      at += 5
    } else bytes[to++] = byte
  }
  return bytes.toString('latin1', 0, to)
}

/** Each rule cut down to its shortest match: a match of megabytes would overflow the stack. */
const SHORTEST = RULES.map(
  ([sign, { source }, before = '']) => [sign, new RegExp(before + source.replaceAll(',}', '}'))] as const,
)

/** A list under a secret's name: redactJson replaces its texts wherever they are in it. */
const LISTED = [
  /":\[[^\]]/,
  new RegExp(String.raw`(?<=":\[)(?<=(?:${FIELDS.map(([name]) => name).join('|')})":\[)[^\]]`),
] as const

const holdsSecret = (text: string): boolean =>
  [...SHORTEST, LISTED].some(([sign, rule]) => sign.test(text) && rule.test(text))

/** Replaces the secrets of a text. */
export async function redactText(text: string): Promise<string> {
  return masked(text, 0, await secretsIn(text))
}

/**
 * Replaces the secrets in every string of a JSON value, names of fields included. All strings go through
 * the rules as one text, a line each: a thousand small ones cost as much as one large one, and a key that
 * was split into lines is still seen. For values of bounded depth.
 */
export async function redactJson<T>(value: T): Promise<T> {
  const texts: string[] = []
  mapStrings(value, (text) => {
    texts.push(text)
    return text
  })
  const ranges = await secretsIn(texts.join('\n'))
  let at = 0
  let first = 0
  const clean = mapStrings(value, (text, name) => {
    const start = at
    at += text.length + 1
    // Ranges are sorted and disjoint: those that ended before this string are done with.
    while (first < ranges.length && (ranges[first]?.[1] ?? 0) <= start) first++
    const isNamed = text !== '' && name !== null && isSecret(name, text)
    return isNamed ? MASK : masked(text, start, ranges, first)
  })
  // The walk keeps the shape: only strings change.
  return clean as T
}

/** A copy whose strings went through `fn`, always in the same order: a field's name (`name` is null), then its value. */
function mapStrings(value: unknown, fn: (text: string, name: string | null) => string, name = ''): unknown {
  if (typeof value === 'string') return fn(value, name)
  if (Array.isArray(value)) return value.map((item) => mapStrings(item, fn, name))
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [fn(key, null), mapStrings(item, fn, key)]),
  )
}

type Range = [from: number, to: number]

const WHOLE = RULES.map(([sign, { source }]) => [sign, new RegExp(source, 'g')] as const)

/** Where secrets are, sorted and disjoint. Yields to the event loop between slices of a long text. */
async function secretsIn(text: string): Promise<Range[]> {
  // `pwd":"x` is the shortest text that a rule matches.
  if (text.length < 7) return []
  const ranges: Range[] = []
  for (let at = 0; at < text.length; at += SLICE - OVERLAP) {
    for (const [from, to] of await found(text.slice(at, at + SLICE))) ranges.push([at + from, at + to])
    if (at + SLICE >= text.length) break
    await yieldToEventLoop()
  }
  return joined(ranges)
}

function joined(ranges: Range[]): Range[] {
  const apart: Range[] = []
  for (const [from, to] of ranges.sort(([a], [b]) => a - b)) {
    const last = apart.at(-1)
    if (last && from <= last[1]) last[1] = Math.max(last[1], to)
    else apart.push([from, to])
  }
  return apart
}

type Lint = (text: string) => Promise<readonly Range[]>

/** The rule that lets a text declare its secrets harmless (`secretlint-disable`). */
const BY_COMMENTS = '@secretlint/secretlint-rule-filter-comments'

let loading: Promise<Lint> | null = null

/** Loads the rule set, once: with the first text, or earlier, when there is time for it. */
export function loadRules(): Promise<Lint> {
  loading ??= importRules()
  return loading
}

async function importRules(): Promise<Lint> {
  const [{ lintSource }, { secretLintProfiler }, { creator }] = await Promise.all([
    import('@secretlint/core'),
    import('@secretlint/profiler'),
    import('@secretlint/secretlint-rule-preset-recommend'),
  ])
  // The profiler would keep sixty marks of each call for ever, and walk through all of them at each new one.
  secretLintProfiler.mark = () => {}
  const rules = creator.rules.filter(({ meta }) => meta.id !== BY_COMMENTS)
  return async (content) => {
    const ranges: Range[] = []
    // Takes ranges as they are found: secretlint itself would compare each with all the others.
    const report = ({ range: [from, to] }: { range: readonly [number, number] }) => {
      ranges.push([from, to])
    }
    const telling = rules.map((rule): (typeof rules)[number] => ({
      ...rule,
      create: (context, options) => rule.create({ ...context, report }, options),
    }))
    const config = { rules: telling.map((rule) => ({ id: rule.meta.id, rule, options: {} })) }
    await lintSource({
      source: { filePath: 'text.txt', content, contentType: 'text' },
      options: { config, maskSecrets: false },
    })
    return ranges
  }
}

async function found(slice: string): Promise<Range[]> {
  const lint = await loadRules()
  // A step's calls are looked through together, and an answer may have made thousands.
  if (isHeld()) await yieldToEventLoop()
  const own = WHOLE.flatMap(([sign, rule]) =>
    sign.test(slice)
      ? [...slice.matchAll(rule)].map(({ index, 0: match }): Range => [index, index + match.length])
      : [],
  )
  return [...own, ...(await lint(slice))]
}

/** The text, which begins at `start`, with the ranges that overlap it replaced. Those before `first` end before it. */
function masked(text: string, start: number, ranges: readonly Range[], first = 0): string {
  let out = ''
  let at = 0
  for (let i = first; i < ranges.length; i++) {
    const [from, to] = ranges[i] ?? [0, 0]
    if (from >= start + text.length) break
    if (to <= start) continue
    out += text.slice(at, Math.max(at, from - start)) + MASK
    at = Math.min(to - start, text.length)
  }
  return out + text.slice(at)
}
