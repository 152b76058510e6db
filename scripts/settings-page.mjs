// Writes docs/settings.md from the settings table, so that the page cannot be wrong. `--check` only compares the two.
import { readFileSync, writeFileSync } from 'node:fs'
import { LIMITS } from '../dist/src/config/limits.js'
import { CONFIG_FILE, ENV_KEYS, ENV_WORKSPACE, SETTINGS } from '../dist/src/config/settings.js'

const page = new URL('../docs/settings.md', import.meta.url)
const variables = [...Object.values(SETTINGS), CONFIG_FILE, ...Object.values(ENV_KEYS), ENV_WORKSPACE]
const rows = variables.map(
  ({ name, also, fallback, meaning }) =>
    `| \`${name}\`${also ? `, or \`${also}\`` : ''} | ${fallback === null || fallback === '' ? '' : `\`${fallback}\``} | ${meaning} |`,
)
const limits = Object.entries(LIMITS).map(
  ([name, { schema, fallback, meaning }]) =>
    `| \`${name}\` | ${'minimum' in schema ? `${schema.minimum} to ${schema.maximum}` : 'duration'} | \`${fallback}\` | ${meaning} |`,
)
const text = `# Settings

Environment variables. All but \`BATON_CONFIG\` and the providers' keys at the end may also be set in the YAML file (\`BATON_CONFIG\`,
default \`./baton.yaml\`), under their names in lower case without the prefix (\`BATON_BODY_LIMIT\` is \`body_limit\`); \`BATON__A__B=…\`
overrides any value of the file. Only Compose reads a file \`.env\`: before \`npm start\`, take it into the shell with
\`set -a; . ./.env\`. Made from \`settings.ts\` and \`limits.ts\` of \`src/config/\` by \`node scripts/settings-page.mjs\`.

| variable | default | meaning |
|---|---|---|
${rows.join('\n')}

## Only in the YAML file

\`toolbox:\` is described in [toolbox.md](toolbox.md).

\`limits:\` takes

| key | takes | default | meaning |
|---|---|---|---|
${limits.join('\n')}

A duration is ISO 8601 (\`PT30S\`), longer than zero and at most 24 days.

\`providers:\` takes, for a provider's logins, leading system blocks and headers that an operator must send with them; none by default. Those
with which no request is sent, such as \`content-length\`, are refused:

\`\`\`yaml
providers:
  anthropic:
    oauth:
      system_blocks: ["…"]
      headers: { x-team: research }
\`\`\`
`
if (!process.argv.includes('--check')) writeFileSync(page, text)
else if (readFileSync(page, 'utf8') !== text) {
  console.error('docs/settings.md is out of date: run node scripts/settings-page.mjs')
  process.exitCode = 1
}
