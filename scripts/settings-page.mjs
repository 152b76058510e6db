// Writes docs/settings.md from the settings table, so that the page cannot be wrong. `--check` only compares.
import { readFileSync, writeFileSync } from 'node:fs'
import { DEFAULT_LIMITS } from '../dist/src/config/load.js'
import { CONFIG_FILE, ENV_KEYS, SETTINGS } from '../dist/src/config/settings.js'

const page = new URL('../docs/settings.md', import.meta.url)
const LIMITS = {
  concurrent_turns: 'Turns that one replica runs at once; more wait, in fair order between owners.',
  waiting_turns: 'Turns that wait so; more are refused with 503.',
  overload_delay:
    'A replica whose event loop is late by this much more often than not, for a second or two, refuses new turns.',
  database_pool: 'Connections to PostgreSQL of one replica.',
  upstream_connections: 'Connections to one provider of one replica.',
  connect_timeout: 'For a connection to a provider.',
  first_byte_timeout: "For the head of a provider's answer.",
  idle_timeout: "For silence in the middle of a provider's answer.",
}
const variables = [...Object.values(SETTINGS), CONFIG_FILE, ...Object.values(ENV_KEYS)]
const rows = variables.map(
  ({ name, fallback, meaning }) =>
    `| \`${name}\` | ${fallback === null || fallback === '' ? '' : `\`${fallback}\``} | ${meaning} |`,
)
const limits = Object.entries(DEFAULT_LIMITS).map(([name, fallback]) => {
  if (!LIMITS[name]) throw new Error(`limits.${name} has no meaning here`)
  return `| \`${name}\` | \`${fallback}\` | ${LIMITS[name]} |`
})
const text = `# Settings

Environment variables. A setting may also stand in the YAML file (\`BATON_CONFIG\`, default \`./baton.yaml\`) under its name in lower
case without the prefix (\`BATON_BODY_LIMIT\` is \`body_limit\`); any value of the file can be overridden by \`BATON__A__B=…\`. Made
from \`src/config/settings.ts\` by \`node scripts/settings-page.mjs\`.

| variable | default | meaning |
|---|---|---|
${rows.join('\n')}

## In the YAML file alone

\`toolbox:\` is described in [toolbox.md](toolbox.md).

\`limits:\` takes

| key | default | meaning |
|---|---|---|
${limits.join('\n')}

\`providers:\` takes, for a provider's logins, leading system blocks and headers that an operator must send with them; none by default:

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
