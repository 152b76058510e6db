/** Rules that others apply after the configuration: they refuse nothing that it lets through, nor the other way round. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import * as undici from 'undici'
import { ConfigError, loadConfig } from '../../src/config/load.ts'
import { createVault } from '../../src/credentials/vault.ts'
import { scratch } from '../scratch.ts'

const folder = scratch(t)

function load(env: Record<string, string>) {
  try {
    return { config: loadConfig(env, folder).config, problems: [] }
  } catch (error) {
    if (error instanceof ConfigError) return { config: null, problems: [...error.problems] }
    throw error
  }
}

t.test('variables that Baton starts no server with are refused before anything starts', async (t) => {
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

t.test('headers that cannot be sent with a request are refused in the configuration', async (t) => {
  const unsent = ['Expect', 'keep-alive', 'upgrade', 'transfer-encoding', 'content-length']
  for (const name of unsent) {
    const request = undici.request('http://127.0.0.1:1', { headers: { [name]: 'x' } })
    await t.rejects(request, { message: /header|not supported/ }, name)
  }
  const own = [
    ...unsent,
    'connection',
    'host',
    'content-type',
    'accept',
    'mcp-session-id',
    'mcp-protocol-version',
  ]
  const file = `toolbox: {mcps: [{name: web, transport: sse, url: "https://a.test/", mode: strict, headers: {${own.map((name) => `${name}: x`)}, te: "é\\t1"}}]}`
  writeFileSync(join(folder, 'headers.yaml'), file)
  t.same(
    load({ BATON_CONFIG: 'headers.yaml' }).problems.map(({ path }) => path),
    own.map((name) => `toolbox.mcps[0].headers.${name}`),
  )
  const login = `providers: {openai: {oauth: {headers: {${own.map((name) => `${name}: x`)}}}}}`
  writeFileSync(join(folder, 'headers.yaml'), login)
  t.same(
    load({ BATON_CONFIG: 'headers.yaml' }).problems.map(({ path }) => path),
    unsent.map((name) => `providers.openai.oauth.headers.${name}`),
    'also those that a login sends',
  )
})

t.test('BATON_CONNECTORS_ALLOW_PRIVATE takes networks, addresses, names and suffixes', async (t) => {
  const fit = [
    '10.0.0.0/8',
    'fd00::/8',
    '127.0.0.1',
    'Tools.internal',
    '*.corp.test',
    '_sip.corp.test',
    'a_b',
    'db',
    'x',
  ]
  t.same(load({ BATON_CONNECTORS_ALLOW_PRIVATE: fit.join(',') }).config?.connectorsAllowPrivate, fit)
  t.equal(load({ BATON_CONNECTORS_ALLOW_PRIVATE: 'Yes' }).config?.connectorsAllowPrivate, true)
  t.equal(load({ BATON_CONNECTORS_ALLOW_PRIVATE: '0' }).config?.connectorsAllowPrivate, false)
  for (const unfit of [
    '10.0.0.0/33',
    '10.0.0.0/-1',
    '10.0.0.0/8/8',
    'fd00::/129',
    '*',
    '*.',
    '*.test/',
    'a*.test',
    'a b',
    'http://a.test',
    '-a',
  ]) {
    t.match(load({ BATON_CONNECTORS_ALLOW_PRIVATE: unfit }).problems, [
      { path: 'BATON_CONNECTORS_ALLOW_PRIVATE', problem: `holds '${unfit}'` },
    ])
  }
})

t.test('an encryption key is accepted only with an id that its seals can hold', async (t) => {
  const key = Buffer.alloc(32, 7)
  for (const [id, fits] of [
    ['k1', true],
    ['2026-11.b_C', true],
    ['k'.repeat(64), true],
    ['k'.repeat(65), false],
    ['a b', false],
  ] as const) {
    const { problems } = load({ BATON_ENCRYPTION_KEYS: `${id}:${key.toString('base64')}` })
    t.equal(problems.length === 0, fits, id)
    if (!fits) continue
    const vault = createVault([{ id, key }])
    t.equal(vault.keyId(vault.seal('plain', 'context')), id)
  }
})
