/** Rules with a reader after the configuration: what it lets through is not refused later, nor the other way round. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { ConfigError, loadConfig } from '../../src/config/load.ts'

const folder = mkdtempSync(join(tmpdir(), 'baton-rules-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))

function load(env: Record<string, string>) {
  try {
    return { config: loadConfig(env, folder).config, problems: [] }
  } catch (error) {
    if (error instanceof ConfigError) return { config: null, problems: [...error.problems] }
    throw error
  }
}

t.test('variables that no server is started with are refused before anything starts', async (t) => {
  const env = ['NODE_OPTIONS', 'ld_preload', 'PYTHONSTARTUP', 'DYLD_INSERT_LIBRARIES', 'A-B']
  const file = `toolbox: {mcps: [{name: web, transport: stdio, command: a, mode: strict, env: {${env.map((name) => `${name}: x`)}, NUL: "a\\0b", FINE: x}}]}`
  writeFileSync(join(folder, 'rules.yaml'), file)
  const { problems } = load({ BATON_CONFIG: 'rules.yaml' })
  t.same(
    problems.map(({ path }) => path),
    [...env, 'NUL'].map((name) => `toolbox.mcps[0].env.${name}`),
  )
  t.match(problems[0], { problem: /other code/ })
})
