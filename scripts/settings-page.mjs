// Writes docs/settings.md from the settings table, so that the page cannot be wrong. `--check` only compares.
import { readFileSync, writeFileSync } from 'node:fs'
import { SETTINGS } from '../dist/src/config/settings.js'

const page = new URL('../docs/settings.md', import.meta.url)
const rows = Object.values(SETTINGS).map(
  ({ name, fallback, meaning }) =>
    `| \`${name}\` | ${fallback === null || fallback === '' ? '' : `\`${fallback}\``} | ${meaning} |`,
)
const text = `# Settings

Environment variables. A setting may also stand in the YAML file (\`BATON_CONFIG\`, default \`./baton.yaml\`) under its name in lower
case without the prefix (\`BATON_BODY_LIMIT\` is \`body_limit\`); any value of the file can be overridden by \`BATON__A__B=…\`. Made
from \`src/config/settings.ts\` by \`node scripts/settings-page.mjs\`.

| variable | default | meaning |
|---|---|---|
${rows.join('\n')}
`
if (!process.argv.includes('--check')) writeFileSync(page, text)
else if (readFileSync(page, 'utf8') !== text) {
  console.error('docs/settings.md is out of date: run node scripts/settings-page.mjs')
  process.exitCode = 1
}
