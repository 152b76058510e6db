/** Holds the tree to its own rules: imports point down, no circles, vendors stay in their folder. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../..')

/** A file may import from its own layer and those after it (ARCHITECTURE.md "The tree"). */
const LAYERS: RegExp[] = [
  /^src\/(server|cli)/,
  /^src\/app/,
  /^(routes\/|src\/(http|auth))/,
  /^src\/(turns|builtins|connector|sessions)/,
  /^(src\/(tools|llm|ports|deployments)|providers\/index)/,
  /^src\/(store|bus|mcp|credentials|provider\.ts|oauth-vendor|sse|config|telemetry|log|validation)|^providers\//,
  /^src\/(chat|errors|foreign|bounded-map|outbound|resolve|addresses|guard|duration|within|text|version)/,
]

interface Import {
  to: string
  typeOnly: boolean
}

function sources(folder: string): string[] {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = `${folder}/${entry.name}`
    return entry.isDirectory() ? sources(path) : path.endsWith('.ts') ? [path] : []
  })
}

function importsOf(path: string): Import[] {
  const text = readFileSync(join(root, path), 'utf8')
  const found = text.matchAll(/^(?:import|export)\s+(type\s)?[^'"]*?from\s+'(\.[^']+)'/gms)
  return [...found].map(([, type, specifier]) => ({
    to: relative(root, resolve(root, dirname(path), specifier ?? '')),
    typeOnly: type !== undefined,
  }))
}

const files = ['src', 'routes', 'providers'].flatMap(sources)
const graph = new Map(files.map((path) => [path, importsOf(path)]))
const layerOf = (path: string) => LAYERS.findIndex((pattern) => pattern.test(path))

t.test('every source file has a layer', async (t) => {
  t.ok(files.length > 40)
  t.same(
    files.filter((path) => layerOf(path) < 0),
    [],
  )
})

t.test('imports only point down', async (t) => {
  const upward = [...graph].flatMap(([path, imports]) =>
    imports.filter(({ to }) => layerOf(to) < layerOf(path)).map(({ to }) => `${path} → ${to}`),
  )
  t.same(upward, [])
})

t.test(
  'adapters are pure: they know the provider contract, the canonical language, errors, and nothing else',
  async (t) => {
    const allowed = /^(providers\/|src\/(provider\.ts|oauth-vendor\.ts|sse\.ts|errors\.ts|chat\/))/
    // providers/index.ts, the table of adapters, also names their settings.
    const strays = [...graph]
      .filter(([path]) => path.startsWith('providers/') && path !== 'providers/index.ts')
      .flatMap(([path, imports]) =>
        imports.filter(({ to }) => !allowed.test(to)).map(({ to }) => `${path} → ${to}`),
      )
    t.same(strays, [])
    const impure = files
      .filter((path) => path.startsWith('providers/'))
      .filter((path) =>
        /\bprocess\.|Date\.now|new Date\(\)|Math\.random|randomUUID|randomBytes|node:(fs|net|http)|\bfetch\(/.test(
          readFileSync(join(root, path), 'utf8'),
        ),
      )
    t.same(impure, [])
  },
)

t.test('no two files import each other, not even in a longer circle', async (t) => {
  const state = new Map<string, 'open' | 'done'>()
  const circles: string[] = []
  const visit = (path: string, trail: string[]) => {
    if (state.get(path) === 'done') return
    if (state.get(path) === 'open') return void circles.push([...trail, path].join(' → '))
    state.set(path, 'open')
    for (const { to, typeOnly } of graph.get(path) ?? []) if (!typeOnly) visit(to, [...trail, path])
    state.set(path, 'done')
  }
  for (const path of files) visit(path, [])
  t.same(circles, [])
})

t.test('only src/config reads the environment', async (t) => {
  const readers = files.filter(
    (path) => !path.startsWith('src/config/') && /process\.env/.test(readFileSync(join(root, path), 'utf8')),
  )
  t.same(
    readers.filter((path) => !['src/server.ts', 'src/cli.ts'].includes(path)),
    [],
  )
})

t.test('every relative import names a file that exists', async (t) => {
  const missing = [...graph].flatMap(([path, imports]) =>
    imports.filter(({ to }) => !existsSync(join(root, to))).map(({ to }) => `${path} → ${to}`),
  )
  t.same(missing, [])
})

t.test('migrations are numbered from 1 on, each number once', async (t) => {
  const names = readdirSync(join(root, 'migrations')).sort()
  t.same(
    names.map((name) => /^(\d{4})_[a-z]+(?:_[a-z]+)+\.sql$/.exec(name)?.[1] ?? name),
    names.map((_, i) => String(i + 1).padStart(4, '0')),
  )
})
