/**
 * Secrets that secretlint's recommended rules find are replaced, and our own rules, which alone decide what is sealed,
 * find them, too.
 */
import { creator } from '@secretlint/secretlint-rule-preset-recommend'
import fc from 'fast-check'
import t from 'tap'
import { hasSecret, redactText } from '../../src/tools/redact.ts'

/** The part of a rule that is used here. */
interface Rule {
  meta: { id: string }
  create(
    context: { createTranslator(): () => object; report(found: { range: [number, number] }): void },
    options: object,
  ): { file(source: { content: string; filePath: string; ext: string }): unknown }
}

/** All rules but one: `filter-comments` lets a text declare its secrets harmless. */
const rules = (creator.rules as unknown as Rule[]).filter(({ meta }) => !meta.id.endsWith('filter-comments'))

/** The rules that have found a secret. */
const finders = new Set<string>()

/** The secrets that the rule set finds in a text. */
function found(content: string): string[] {
  const all: string[] = []
  for (const rule of rules) {
    const report = ({ range: [from, to] }: { range: [number, number] }) => {
      finders.add(rule.meta.id)
      all.push(content.slice(from, to))
    }
    rule
      .create({ createTranslator: () => () => ({}), report }, {})
      .file({ content, filePath: 'text.txt', ext: '.txt' })
  }
  return all
}

/** For each kind of secret: what stands before the secret, the secret, and what may stand behind it. */
const SHAPES: Record<string, [before: RegExp, secret: RegExp, after?: RegExp]> = {
  'an AWS secret': [
    /^["']?(AWS|aws|Aws)?_?(SECRET|secret|Secret)_?(ACCESS|access|Access)_?(KEY|key|Key)["']?[ \t\r\n]{0,60}(:|=>|=)[ \t\r\n]{0,60}["']?$/,
    /^[A-Za-z0-9/+=]{39}[A-Za-z0-9]$/,
    /^["']?$/,
  ],
  'a private key': [
    /^-----BEGIN ?((RSA|DSA|EC|OPENSSH|PGP) )?PRIVATE KEY( BLOCK)?-----\n?$/,
    /^(MI|b3BlbnNzaC1rZXktdjE)[A-Za-z0-9+/]{100,300}={0,2}$/,
    /^\n?-----END ?((RSA|DSA|EC|OPENSSH|PGP) )?PRIVATE KEY( BLOCK)?-----$/,
  ],
  'an npm token': [/^$/, /^npm_[A-Za-z0-9_]{36}$/],
  'a password in a URL': [
    /^(https?|ftps?):\/\/[-a-zA-Z0-9_]{2,256}:$/,
    /^[-a-zA-Z0-9_]{12,256}$/,
    /^@[-a-zA-Z0-9%._+~#=]{1,256}\.[a-zA-Z0-9()]{2,6}$/,
  ],
  'a Slack token': [
    /^$/,
    /^(xoxb|xoxp|xapp|xoxa|xoxo|xoxr)-(\d-)?([a-zA-Z0-9]{1,40}-){1,4}[a-zA-Z0-9]{1,40}$/,
  ],
  'a Slack webhook': [
    /^(https:\/\/hooks\.slack\.com\/services|HTTPS:\/\/Hooks\.Slack\.COM\/SERVICES)\/$/,
    /^T[a-zA-Z0-9]{1,40}\/B[a-zA-Z0-9]{1,40}\/[a-zA-Z0-9]{1,40}$/,
  ],
  'a SendGrid key': [/^$/, /^SG\.[A-Za-z0-9_]{22}\.[A-Za-z0-9_]{20}[-_][A-Za-z0-9_]{22}$/],
  'a Shopify token': [/^$/, /^(shppa|shpca|shpat|shpss)_[a-zA-Z0-9]{32,64}$/],
  'a GitHub token': [/^$/, /^(gh[pousr]_[A-Za-z0-9_]{36}|github_pat_[A-Za-z0-9_]{82})$/],
  'an OpenAI key': [
    /^$/,
    /^(sk-(proj|svcacct|admin)-([A-Za-z0-9_-]{74}|[A-Za-z0-9_-]{58})T3BlbkFJ([A-Za-z0-9_-]{74}|[A-Za-z0-9_-]{58})|sk-[a-zA-Z0-9]{20}T3BlbkFJ[a-zA-Z0-9]{20})$/,
  ],
  'an Anthropic key': [/^$/, /^sk-ant-api0\d-[A-Za-z0-9_-]{90,128}AA$/],
  'a Linear key': [/^$/, /^lin_api_[a-zA-Z0-9_]{32,128}$/],
  'a GitLab or Grafana token': [
    /^$/,
    /^(glpat-[A-Za-z0-9_-]{20,128}|glc_[A-Za-z0-9+/]{32,400}={0,2}|glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8})$/,
  ],
  'a Groq, Hugging Face or Notion key': [
    /^$/,
    /^(gsk_[a-zA-Z0-9]{52}|hf_[a-zA-Z]{34}|ntn_[0-9]{11}[A-Za-z0-9]{35})$/,
  ],
  'a Vault token': [/^$/, /^(hv[rs]\.[A-Za-z0-9_-]{90,120}|hvb\.[A-Za-z0-9_-]{138,300})$/],
  'a Vercel, Databricks, Docker or Figma token': [
    /^$/,
    /^(vc[aikpr]_[A-Za-z0-9]{20,60}|dapi[A-Fa-f0-9]{32}(-[0-9])?|dckr_pat_[a-zA-Z0-9_-]{27}|figd_[A-Za-z0-9_-]{40,200})$/,
  ],
  "a database's address": [
    /^(mongodb(\+srv)?|(jdbc:)?mysqlx?|postgres(ql)?|MongoDB|MYSQL|PostgreSQL):\/\/[a-z@"'.-]{1,100}:$/,
    /^[A-Za-z0-9"':?#[\]!%-]{8,200}$/,
    /^@[a-z.]{1,100}(\/[a-z]{0,20})?(\?[a-z=&]{0,50}password=hunter2-Xy9)?$/,
  ],
}
const AROUND = [
  '',
  ' ',
  '"',
  "'",
  '\n',
  '=',
  ':',
  '/',
  '-',
  '_',
  '.',
  ',',
  '@',
  '(',
  ')',
  '1',
  'a',
  'Z',
  'é',
  '\\n',
]
const around = fc.array(fc.constantFrom(...AROUND, 'word', 'risk', 'https://'), { maxLength: 3 })
const matching = (shape: RegExp) => fc.stringMatching(shape)

for (const [what, [before, secret, after = /^$/]] of Object.entries(SHAPES)) {
  t.test(`${what} is replaced wherever the rule set finds it`, async (t) => {
    let count = 0
    await fc.assert(
      fc.asyncProperty(
        around,
        matching(before),
        matching(secret),
        matching(after),
        around,
        async (left, start, middle, end, right) => {
          const text = [...left, start, middle, end, ...right].join('')
          if (found(text).length === 0 || text.length < 12) return true
          count++
          const told = await redactText(text)
          const isGone =
            !told.includes(middle) && !told.includes(middle.slice(-8)) && !told.includes('hunter2')
          return isGone && hasSecret(JSON.stringify({ text }))
        },
      ),
      { numRuns: 300 },
    )
    t.ok(count > 100, `the rule set finds ${count} of them`)
  })
}

t.test('the rule set finds nothing in a redacted text', async () => {
  const parts = Object.values(SHAPES).flatMap((shapes) => shapes.map((shape) => matching(shape ?? /^$/)))
  const mix = fc.array(fc.oneof(...parts, fc.constantFrom(...AROUND, 'risk', '-----BEGIN ')), {
    maxLength: 12,
  })
  await fc.assert(
    fc.asyncProperty(mix, async (pieces) => {
      const text = `${pieces.join(' ')} and more`
      return found(await redactText(text)).length === 0
    }),
    { numRuns: 500 },
  )
})

t.test('each rule of the set, a new one too, has found something here', async (t) => {
  const silent = rules.map(({ meta }) => meta.id).filter((id) => !finders.has(id))
  // 1Password's decodes the token (`redact.test.ts` has one); Google's looks at key files, whose key is a private key.
  t.strictSame(silent.sort(), ['@secretlint/secretlint-rule-1password', '@secretlint/secretlint-rule-gcp'])
})
