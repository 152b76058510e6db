/** What the documents name exists: settings, metrics, files, scripts. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { basename, dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { parse, parseAllDocuments } from 'yaml'
import { FileSchema } from '../src/config/file.ts'
import { loadConfig } from '../src/config/load.ts'
import { ENV_KEYS, SETTINGS } from '../src/config/settings.ts'
import { METRICS } from '../src/telemetry.ts'
import { listening } from './listening.ts'
import { NONE } from './patterns.ts'
import { scratch } from './scratch.ts'

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../..')
const read = (path: string) => readFileSync(join(root, path), 'utf8')
const pages = [
  ...['README.md', 'ARCHITECTURE.md', 'CONTRIBUTING.md', 'CHANGELOG.md', 'SECURITY.md'],
  ...readdirSync(join(root, 'docs')).map((name) => `docs/${name}`),
].filter((path) => path.endsWith('.md'))

const known = new Set<string>([...Object.values(SETTINGS).map(({ name }) => name), 'BATON_CONFIG'])
const unknownSettings = (text: string) =>
  [...text.matchAll(/\bBATON_[A-Z][A-Z_]*[A-Z]\b/g)].map(([name]) => name).filter((name) => !known.has(name))

t.test('every setting that a document names exists', async (t) => {
  for (const page of pages) t.same(unknownSettings(read(page)), [], page)
})

t.test('the settings page is made from the settings', async (t) => {
  const { status, stderr } = spawnSync(process.execPath, ['scripts/settings-page.mjs', '--check'], {
    cwd: root,
    encoding: 'utf8',
  })
  t.equal(status, 0, stderr)
  const names = Object.values(SETTINGS).flatMap((setting) => [
    setting.name,
    ...('also' in setting ? [setting.also] : []),
  ])
  const page = read('docs/settings.md')
  t.same(
    names.filter((name) => !page.includes(`\`${name}\``)),
    [],
  )
})

t.test('the toolbox page names every key of the toolbox, and no other', async (t) => {
  const { properties } = FileSchema.properties.toolbox
  const { tools, mcps } = properties
  const tables = read('docs/toolbox.md')
    .split('| key | type |')
    .slice(1)
    .map((table) => [...table.matchAll(/^\| `([a-z_]+)` \|/gm)].map(([, key]) => key).sort())
  t.same(
    tables,
    [properties, tools.items.properties, mcps.items.properties].map((keys) => Object.keys(keys).sort()),
    'the rows of docs/toolbox.md are the keys of src/config/file.ts',
  )
})

const unknownMetrics = (text: string) =>
  [...text.matchAll(/\bbaton_[a-z_]+\b/g)]
    .map(([name]) => name.replace(/_(bucket|sum|count)$/, ''))
    .filter((name) => !(name in METRICS))

t.test('every metric that a document names exists', async (t) => {
  for (const page of pages) t.same(unknownMetrics(read(page)), [], page)
})

t.test('the operations page tells what every metric means', async (t) => {
  const page = read('docs/operations.md')
  t.same(
    Object.keys(METRICS).filter((name) => !page.includes(`\n| \`${name}\` |`)),
    [],
    'give each of these a row under "Metrics" of docs/operations.md',
  )
})

t.test(
  'the operations page names only lines that the log has, and all fields of the lines of a turn',
  async (t) => {
    const [, section = ''] = read('docs/operations.md').split('\n## The log\n')
    const rows = [...section.matchAll(/^\| (`[a-z].*?) \| .*?(?:info|warn|error|debug) \| (.*) \|$/gim)]
    const told = rows.flatMap(([, lines = '', fields = '']) =>
      [...lines.matchAll(/`([^`]+)`/g)].map(([, line = '']) => ({ line, fields })),
    )
    const code = ['src', 'routes']
      .flatMap((folder) =>
        readdirSync(join(root, folder), { recursive: true }).map((name) => `${folder}/${name}`),
      )
      .filter((path) => path.endsWith('.ts'))
      .map(read)
      .join('')
    t.same(
      told.filter(({ line }) => !code.includes(`'${line.replace(/^(PostgreSQL) is away$/, '$1')}'`)),
      [],
    )
    const [, lines = ''] = /^interface Lines \{\n(.*?)^\}/ms.exec(read('src/log.ts')) ?? []
    const ofTurns = [...lines.matchAll(/^ {2}'([^']+)': OfTurn<\{(.*?)\}>$/gms)]
    t.equal(ofTurns.length, lines.split(': OfTurn<').length - 1, 'every line of a turn is found')
    t.ok(ofTurns.length > 0)
    for (const [, line = '', fields = ''] of ofTurns) {
      const row = told.find((row) => row.line === line)?.fields ?? ''
      const names = ['session_id', 'turn_id', ...[...fields.matchAll(/(\w+)\??: /g)].map(([, name]) => name)]
      t.same(
        names.filter((name) => !row.includes(`\`${name}\``)),
        [],
        `give these fields of '${line}' a place under "The log" of docs/operations.md`,
      )
    }
  },
)

t.test('deployment files set settings that exist, and look at metrics that do', async (t) => {
  const folders = ['deploy/kubernetes', 'deploy/nginx', 'deploy/prometheus']
  const files = folders.flatMap((folder) =>
    readdirSync(join(root, folder)).map((name) => `${folder}/${name}`),
  )
  for (const file of ['docker-compose.yml', ...files]) {
    const text = read(file)
    if (/\.ya?ml$/.test(file)) for (const doc of parseAllDocuments(text)) t.same(doc.errors, [], file)
    t.same([...unknownSettings(text), ...unknownMetrics(text)], [], file)
  }
})

t.test("every provider's key has its place where keys are told of and set", async (t) => {
  const files = ['README.md', 'docs/api.md', 'docker-compose.yml', 'deploy/kubernetes/secret.yaml.example']
  for (const file of files) for (const { name } of Object.values(ENV_KEYS)) t.match(read(file), name, file)
})

t.test('alarms ask for labels that their metrics have, and lead to the runbook', async (t) => {
  const [, runbook = ''] = read('docs/operations.md').split('\n## Alarms, and what to do\n')
  const { groups } = parse(read('deploy/prometheus/rules.yaml'))
  const rules: { alert: string; expr: string; annotations: { runbook: string } }[] = groups[0].rules
  for (const { alert, expr, annotations } of rules) {
    t.match(runbook, `\n**${annotations.runbook}**`, alert)
    const names = Object.keys(METRICS).filter((name) => new RegExp(`\\b${name}(_bucket)?\\b`).test(expr))
    t.equal(names.length, 1, alert)
    const { kind, labels }: { kind: string; labels: string[] } = METRICS[names[0] as keyof typeof METRICS]
    t.equal(expr.includes('_bucket'), kind === 'histogram', alert)
    const matched = [...expr.matchAll(/(\w+)=~?"/g)].map(([, label = '']) => label)
    const grouped = [...expr.matchAll(/by \(([^)]*)\)/g)].flatMap(([, list = '']) => list.split(', '))
    const asked = [...matched, ...grouped].filter((label) => label !== 'le')
    t.same(
      asked.filter((label) => !labels.includes(label)),
      [],
      alert,
    )
  }
  t.ok(rules.length > 5)
})

/** What a pod is made of. */
const pods = parse(read('deploy/kubernetes/deployment.yaml')).spec.template.spec

t.test('pods read the file of their ConfigMap, which may stay as it is, or be filled in', async (t) => {
  const { metadata, data } = parse(read('deploy/kubernetes/configmap.yaml'))
  const [volume] = pods.volumes.filter(({ configMap }: { configMap?: object }) => configMap)
  t.equal(volume.configMap.name, metadata.name)
  const [{ env, volumeMounts }] = pods.containers
  const { mountPath } = volumeMounts.find(({ name }: { name: string }) => name === volume.name)
  const path = env.find(({ name }: { name: string }) => name === 'BATON_CONFIG').value
  t.equal(dirname(path), mountPath)
  const text: string = data[basename(path)]
  const file = join(scratch(t), 'baton.yaml')
  const toolboxOf = (source: string) => {
    writeFileSync(file, source)
    return loadConfig({ BATON_CONFIG: file }, '/nowhere').config.toolbox
  }
  t.match(toolboxOf(text), { mcps: NONE, tools: NONE })
  t.match(toolboxOf(text.replaceAll(/^# /gm, '')), { mcps: [{ name: 'search' }] }, 'the example is sound')
})

t.test('the proxy waits for calls that are silent for long', async (t) => {
  const [, location = '', block = ''] =
    /location ~ (\S+) \{([^}]*)\}/.exec(read('deploy/nginx/baton.conf')) ?? []
  t.match(block, 'proxy_read_timeout 620s')
  for (const path of [
    'sessions/ses_1/turns',
    'turns/turn_1',
    'turns/turn_1/cancel',
    'keys/rotate-encryption',
    'oauth/gemini/exchange',
    'oauth/callback/gemini',
    'oauth/connectors/callback',
    'credentials/import',
  ]) {
    t.match(`/v1/${path}`, new RegExp(location), path)
  }
  t.notMatch('/v1/turns/turn_1/events', new RegExp(location), 'streams ping')
})

t.test(
  'the proxies neither refuse nor buffer large bodies: Baton refuses them, in words that a page can read',
  async (t) => {
    const server = read('deploy/nginx/baton.conf')
    t.match(server, /^ {2}client_max_body_size 0;$/m)
    t.match(server, /^ {2}proxy_request_buffering off;$/m)
    const { annotations } = parse(read('deploy/kubernetes/ingress.yaml')).metadata
    t.match(annotations, {
      'nginx.ingress.kubernetes.io/proxy-body-size': '0',
      'nginx.ingress.kubernetes.io/proxy-request-buffering': 'off',
    })
  },
)

t.test(
  'after a restart of the machine all services of Compose come back, also PostgreSQL and Redis',
  async (t) => {
    const { services } = parse(read('docker-compose.yml'))
    for (const [name, { restart }] of Object.entries<{ restart?: string }>(services))
      t.equal(restart, 'unless-stopped', name)
    t.ok(services.postgres && services.redis)
  },
)

t.test('no log of a Compose service grows without end', async (t) => {
  const { services } = parse(read('docker-compose.yml'))
  for (const [name, { logging }] of Object.entries<{ logging?: object }>(services))
    t.match(logging, { driver: 'json-file', options: { 'max-size': /^\d+m$/, 'max-file': /^\d+$/ } }, name)
})

t.test('files of the checkout that Compose mounts can be read under SELinux', async (t) => {
  const mounts = read('docker-compose.yml').match(/"\.\/[^"]+"/g) ?? []
  t.ok(mounts.length > 0)
  for (const mount of mounts) t.match(mount, /:ro,z"$/)
})

t.test('a Service named baton sets no setting of its pods', async (t) => {
  // The link to such a Service would set BATON_PORT to a URL.
  t.equal(pods.enableServiceLinks, false)
})

t.test('pods run as the user of the image, unless the cluster gives one', async (t) => {
  t.match(pods.securityContext, { runAsNonRoot: true, runAsUser: undefined, fsGroup: undefined })
  t.match(read('Dockerfile'), /^USER [1-9]\d*$/m, 'with runAsNonRoot a name is refused')
})

t.test('a start may take as long in Docker as in Kubernetes', async (t) => {
  // Compose starts no proxy once a gateway has been found unhealthy.
  const [{ startupProbe }] = pods.containers
  const [, minutes] = /^HEALTHCHECK .*--start-period=(\d+)m /m.exec(read('Dockerfile')) ?? []
  t.equal(Number(minutes) * 60, startupProbe.periodSeconds * startupProbe.failureThreshold)
})

t.test("the image's health check takes no agent and no proxy that is for the gateway", async (t) => {
  const [, json = ''] = /^HEALTHCHECK .*\\\n +CMD (\[.*\])$/m.exec(read('Dockerfile')) ?? []
  const [command, ...args]: string[] = JSON.parse(json)
  const server = createServer((_, answer) => answer.end())
  const port = await listening(t, server)
  // Only from 22.21 on does Node itself read NODE_USE_ENV_PROXY.
  const bin = scratch(t)
  const node = `#!/bin/sh\n[ -z "$NODE_USE_ENV_PROXY" ] && exec ${process.execPath} "$@"\n`
  writeFileSync(join(bin, 'node'), node, { mode: 0o755 })
  const env = {
    PATH: `${bin}:${process.env.PATH}`,
    BATON_PORT: String(port),
    NODE_OPTIONS: '--require /nowhere.cjs',
    NODE_USE_ENV_PROXY: '1',
  }
  const check = spawn(command ?? '', args, { env, stdio: 'inherit' })
  t.same(await once(check, 'exit'), [0, null])
})

t.test('every file that a document links to or names in code exists', async (t) => {
  for (const page of pages) {
    const text = read(page)
    const links = [...text.matchAll(/\]\(([^)#:]+)\)/g)].map(([, link = '']) => join(dirname(page), link))
    const named = [
      ...text.matchAll(
        /`((?:src|test|routes|providers|scripts|migrations|docs|demo|bench|deploy)\/[\w./-]*\w)\/?`/g,
      ),
    ]
      .map(([, path = '']) => path)
      .filter((path) => !/NNNN|<|\*/.test(path))
    t.same(
      [...links, ...named].filter((path) => !existsSync(join(root, path))),
      [],
      page,
    )
  }
})

t.test('the shell blocks of a document hold no comments, which zsh takes for commands', async (t) => {
  for (const page of pages) {
    const blocks = [...read(page).matchAll(/^```(?:sh)?\n([\s\S]*?)^```$/gm)].map(([, block = '']) => block)
    t.same(
      blocks.flatMap((block) => block.match(/^(.*\s)?#.*$/gm) ?? []),
      [],
      page,
    )
  }
})

t.test('every npm script that a document names exists', async (t) => {
  const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> }
  for (const page of pages) {
    const named = [...read(page).matchAll(/npm run (?:-s )?([a-z:]+)/g)].map(([, name = '']) => name)
    t.same(
      named.filter((name) => !(name in scripts)),
      [],
      page,
    )
  }
})

t.test('the README asks for the versions of Node that package.json asks for', async (t) => {
  const { engines } = JSON.parse(read('package.json')) as { engines: { node: string } }
  const asked = [...engines.node.matchAll(/\d+\.\d+/g)].map(([version]) => version)
  const [, said = ''] = /^You need (Node .*?), on Linux/m.exec(read('README.md')) ?? []
  t.same(said.match(/\d+\.\d+/g)?.sort(), asked.sort())
})
