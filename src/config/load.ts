/**
 * Environment and YAML file → one frozen Config, or every problem at once. Nothing else in Baton reads the
 * environment; nothing starts before this has passed.
 */
import { isUtf8 } from 'node:buffer'
import { existsSync, readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import type { ErrorObject } from 'ajv'
import { isLoopback } from '../addresses.ts'
import { stepsOf } from '../chat/json.ts'
import { createAjv, type Problem, problemOf } from '../validation.ts'
import type { Config } from './config.ts'
import { headerProblem, UNSENDABLE } from './connector-shape.ts'
import { type FileContent, FileSchema, override, parseYaml } from './file.ts'
import { limitsOf } from './limits.ts'
import { holdsPlaceholder, isQuoted, QUOTED, UNFILLED, UnfitValue } from './readers.ts'
import {
  CONFIG_FILE,
  ENV_KEYS,
  ENV_WORKSPACE,
  PROVIDER_IDS,
  SETTINGS,
  type Setting,
  type SettingValues,
} from './settings.ts'
import { textValues, toolboxOf, toolboxProblems, unfilledAt } from './toolbox.ts'

type Env = Readonly<Record<string, string | undefined>>

/** The exit code for a configuration that cannot be used (EX_CONFIG of sysexits.h). */
export const EX_CONFIG = 78

/**
 * The configuration cannot be used; the process should exit with EX_CONFIG after showing it. Warnings are shown with
 * it: a misspelt name may be why a setting is missing.
 */
export class ConfigError extends Error {
  readonly problems: readonly Problem[]
  constructor(problems: readonly Problem[], warnings: readonly string[] = []) {
    super([...problems.map(inWords), ...warnings.map((warning) => `${warning}.`)].join('\n'))
    this.name = 'ConfigError'
    this.problems = problems
  }
}

function inWords({ path, problem, remedy }: Problem): string {
  return `${path}: ${problem}.${remedy ? ` ${remedy}.` : ''}`
}

/**
 * Reads and checks everything. `cwd`: where `baton.yaml` is looked for, and where relative paths begin. Throws
 * ConfigError with all problems; warnings are for the operator's log.
 */
export function loadConfig(env: Env, cwd: string): { config: Config; warnings: string[] } {
  const problems: Problem[] = []
  const named = given(env, CONFIG_FILE.name)
  const path = resolve(cwd, named ?? 'baton.yaml')
  const file = readFile(path, named !== null, problems)
  const setBy = applyOverrides(file, env, problems)
  const content = checkFile(file, setBy, problems)
  const read = readSettings(env, file, setBy, problems)
  const envCredentials = readEnvKeys(env, problems)
  problems.push(...crossRules(read))
  const ignored = [...unknownVariables(env), ...misnamedFile(path)]
  if (problems.length > 0) throw new ConfigError(problems, ignored)
  // Every reader has run without a problem: the table's own types hold.
  const values = read as SettingValues
  const config = { ...assemble(values, content, envCredentials, cwd), file: path }
  return { config: deepFreeze(config), warnings: [...ignored, ...advice(values)] }
}

/** A variable's text; null: it is not set, or empty. */
const given = (env: Env, name: string): string | null => env[name]?.trim() || null

/** A file that nobody named may be absent. */
function readFile(path: string, isNamed: boolean, problems: Problem[]): Record<string, unknown> {
  let source: Buffer
  try {
    source = readFileSync(path)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (isNamed || code !== 'ENOENT') {
      problems.push({
        path: isNamed ? CONFIG_FILE.name : path,
        problem: `the file ${path} cannot be read (${code})`,
        remedy: code === 'EISDIR' ? A_FOLDER : 'Correct the path, or make the file readable',
      })
    }
    return {}
  }
  if (!isUtf8(source)) {
    problems.push({ path, problem: 'is not UTF-8', remedy: "Save it as UTF-8; PowerShell's > writes UTF-16" })
    return {}
  }
  const read = parseYaml(path, source.toString())
  problems.push(...read.problems)
  return read.value as Record<string, unknown>
}

const A_FOLDER = 'It is a folder; Docker makes one where the file that it is to mount is missing'

/** Returns which variable set which path, so that a problem there can name it. */
function applyOverrides(file: Record<string, unknown>, env: Env, problems: Problem[]): Map<string, string> {
  const setBy = new Map<string, string>()
  const names = Object.keys(env).filter((name) => name.startsWith('BATON__'))
  // `…__2` before `…__10`: a list grows from its end.
  if (names.length > 1) names.sort(new Intl.Collator('en', { numeric: true }).compare)
  for (const name of names) {
    // A Secret made with `echo … | base64` ends with a line break (kubernetes/kubernetes#23404). A text of several lines
    // keeps its last one: OpenSSH reads no key without it.
    const set = override(file, name, (env[name] ?? '').replace(/^(.*)[\r\n]+$/, '$1'))
    if (typeof set === 'string') setBy.set(set, name)
    else problems.push(set)
  }
  return setBy
}

function checkFile(file: object, setBy: Map<string, string>, problems: Problem[]): FileContent {
  // Most installations have no file: they need not wait for its schema.
  if (Object.keys(file).length === 0) return {}
  const check = createAjv({ allErrors: true }).compile(FileSchema)
  const errors = check(file) ? [] : (check.errors ?? [])
  // Of a key without a value, only the name can be wrong.
  const found = errors.filter(({ data }) => data !== undefined).map(problemOf)
  const content = without(file, errors) as FileContent
  const further = [...(content.toolbox ? toolboxProblems(content.toolbox) : []), ...providerProblems(content)]
  found.push(...further.filter(({ path }) => !found.some((problem) => problem.path === path)))
  problems.push(...found.map((problem) => ({ ...problem, path: withVariable(problem.path, setBy) })))
  return content
}

/** A path of the file, with the variable that set it, or a list or map around it. */
function withVariable(path: string, setBy: ReadonlyMap<string, string>): string {
  for (let at = path; at !== ''; at = at.replace(/(^|[.[])[^.[]*$/, '')) {
    const name = setBy.get(at)
    if (name) return `${path} (${name})`
  }
  return path
}

/**
 * The file without the values at fault, and without keys that have none, so that the rest can still be checked for what
 * no schema can say.
 */
function without(file: object, errors: readonly ErrorObject[]): object {
  const copy: object = JSON.parse(JSON.stringify(file))
  for (const { instancePath, params } of errors) {
    const field: string | undefined = params.additionalProperty ?? params.missingProperty
    const steps = [...stepsOf(instancePath), ...(field === undefined ? [] : [field])]
    const last = steps.pop() ?? ''
    let at: unknown = copy
    for (const step of steps) at = (at as Record<string, unknown> | undefined)?.[step]
    if (Array.isArray(at)) at[Number(last)] = {}
    else if (typeof at === 'object' && at !== null) delete (at as Record<string, unknown>)[last]
  }
  return copy
}

function providerProblems(content: FileContent): Problem[] {
  return Object.entries(content.providers ?? {}).flatMap(([id, { oauth }]) =>
    Object.entries(oauth?.headers ?? {}).flatMap(([name, value]) => {
      const path = `providers.${id}.oauth.headers.${name}`
      const problem = headerProblem(name, String(value), UNSENDABLE)
      if (problem !== null) return [{ path, problem, remedy: '' }]
      return holdsPlaceholder(String(value)) ? [unfilledAt(path)] : []
    }),
  )
}

/** Variable before file before default. An unfit value is undefined. */
function readSettings(
  env: Env,
  file: Record<string, unknown>,
  setBy: ReadonlyMap<string, string>,
  problems: Problem[],
): Partial<SettingValues> {
  const values = Object.entries<Setting<unknown>>(SETTINGS).map(([key, setting]) => {
    const name = given(env, setting.name) === null ? (setting.also ?? setting.name) : setting.name
    const fromEnv = given(env, name)
    const fromFile = fileText(file[key])
    const path = fromEnv === null && fromFile !== null ? withVariable(key, setBy) : name
    return [key, readOne(setting, path, fromEnv ?? fromFile ?? setting.fallback, problems)]
  })
  return Object.fromEntries(values)
}

function fileText(value: unknown): string | null {
  // A map in a list is the schema's to report.
  if (Array.isArray(value))
    return value.some((item) => typeof item === 'object') ? null : value.map(String).join(',')
  return value === undefined || typeof value === 'object' ? null : String(value)
}

/** Null: the setting is not set; undefined: its value does not fit. */
function readOne<T>(
  setting: Setting<T>,
  path: string,
  text: string | null,
  problems: Problem[],
): T | null | undefined {
  if (text === null) return null
  try {
    if (isQuoted(text)) throw new UnfitValue(QUOTED.problem, QUOTED.remedy)
    if (holdsPlaceholder(text))
      throw new UnfitValue(UNFILLED, 'Write the value itself; a $ that a URL holds is written %24')
    return setting.read(text)
  } catch (error) {
    if (!(error instanceof UnfitValue)) throw error
    problems.push({
      path,
      problem: error.message,
      remedy: error.remedy || setting.meaning.replace(/\.$/, ''),
    })
    return undefined
  }
}

function readEnvKeys(env: Env, problems: Problem[]): Config['envCredentials'] {
  return PROVIDER_IDS.flatMap((provider) => {
    const told = (setting: Setting<string | null>) =>
      readOne(setting, setting.name, given(env, setting.name), problems)
    const apiKey = told(ENV_KEYS[provider])
    const workspaceId = provider === 'anthropic' && told(ENV_WORKSPACE)
    return apiKey ? [{ provider, apiKey, ...(workspaceId ? { workspaceId } : {}) }] : []
  })
}

const authOf = ({ auth, host }: Pick<SettingValues, 'auth' | 'host'>): 'off' | 'keys' =>
  auth ?? (isLoopback(host) ? 'off' : 'keys')

/** Checks values that must fit together. A rule whose values are unfit themselves has nothing to say. */
function crossRules(values: Partial<SettingValues>): Problem[] {
  const { host, auth, cors_origins, database_url, encryption_keys } = values
  const problems: Problem[] = []
  const isOff = host !== undefined && auth !== undefined && authOf({ host, auth }) === 'off'
  if (isOff && !isLoopback(host)) {
    problems.push({
      path: SETTINGS.auth.name,
      problem: `must not be off while BATON_HOST is ${host}, which others can reach`,
      remedy: 'Set BATON_AUTH=keys with a BATON_ADMIN_KEY, or BATON_HOST=127.0.0.1',
    })
  }
  if (isOff && cors_origins?.includes('*')) {
    problems.push({
      path: SETTINGS.cors_origins.name,
      problem: 'must not hold * while auth is off: every page could then call',
      remedy: 'Name the origins, or set BATON_AUTH=keys',
    })
  }
  // Also if the URL itself is unfit (undefined): once it is right, it needs the keys.
  if (database_url !== null && encryption_keys === null) {
    problems.push({
      path: SETTINGS.encryption_keys.name,
      problem: 'is required with DATABASE_URL',
      remedy: 'Set it to k1:$(openssl rand -base64 32), the same for every replica',
    })
  }
  return problems
}

function assemble(
  values: SettingValues,
  content: FileContent,
  envCredentials: Config['envCredentials'],
  cwd: string,
): Omit<Config, 'file'> {
  const auth = authOf(values)
  return {
    host: values.host,
    port: values.port,
    publicUrl: values.public_url,
    dataDir: resolve(cwd, values.data_dir),
    databaseUrl: values.database_url,
    redisUrl: values.redis_url,
    logLevel: values.log_level,
    auth,
    adminKey: values.admin_key,
    corsOrigins: values.cors_origins,
    bodyLimit: values.body_limit,
    rateLimitPerMinute: values.rate_limit_per_minute,
    turnsPerOwner: values.turns_per_owner,
    drainSeconds: values.drain_seconds,
    leaseSeconds: values.lease_seconds,
    approvalSeconds: values.approval_seconds,
    toolWaitSeconds: values.tool_wait_seconds,
    ledgerRetentionMs: values.ledger_retention,
    connectorsAllowPrivate: values.connectors_allow_private ?? auth === 'off',
    allowStdioConnectors: values.allow_stdio_connectors,
    stdioIsolation: values.stdio_isolation,
    enableOauth: values.enable_oauth,
    encryptionKeys: values.encryption_keys,
    ...proxiesOf(values),
    baseUrls: baseUrlsOf(values),
    oauth: oauthOf(values),
    envCredentials,
    loginExtras: loginExtrasOf(content),
    deploymentOptions: {
      dual_declarations: values.code_assist_dual_declarations,
      unstored: !values.gemini_store,
    },
    toolbox: toolboxOf(content.toolbox),
    limits: limitsOf(content.limits),
  }
}

function proxiesOf(values: SettingValues): Pick<Config, 'forwardProxy' | 'connectorProxy'> {
  const { https_proxy: url, no_proxy: except, connectors_proxy: asksFor } = values
  if (url === null) return { forwardProxy: null, connectorProxy: null }
  const forwardProxy = { url, except }
  return { forwardProxy, connectorProxy: asksFor === 'none' ? null : { ...forwardProxy, asksFor } }
}

const baseUrlsOf = (values: SettingValues): Config['baseUrls'] =>
  Object.fromEntries(
    Object.entries(values).flatMap(([key, value]) => {
      const [, base] = /^(.+)_base_url$/.exec(key) ?? []
      return base === undefined ? [] : [[base, value]]
    }),
  ) as Config['baseUrls']

const oauthOf = (values: SettingValues): Config['oauth'] => ({
  openai: { issuer: values.openai_oauth_issuer, clientId: values.openai_oauth_client_id },
  anthropic: {
    authorizeUrl: values.anthropic_oauth_authorize_url,
    tokenUrl: values.anthropic_oauth_token_url,
    clientId: values.anthropic_oauth_client_id,
  },
  gemini: {
    authorizeUrl: values.google_oauth_authorize_url,
    tokenUrl: values.google_oauth_token_url,
    clientId: values.google_oauth_client_id,
    clientSecret: values.google_oauth_client_secret,
  },
})

const loginExtrasOf = (content: FileContent): Config['loginExtras'] =>
  Object.fromEntries(
    Object.entries(content.providers ?? {}).map(([id, { oauth }]) => {
      const headers = Object.entries(textValues(oauth?.headers))
      const named = headers.map(([name, value]) => [name.toLowerCase(), value])
      return [id, { system_blocks: oauth?.system_blocks ?? [], headers: Object.fromEntries(named) }]
    }),
  )

function unknownVariables(env: Env): string[] {
  const settings = [ENV_WORKSPACE, ...Object.values(ENV_KEYS), ...Object.values(SETTINGS)]
  const known = new Set<string>(settings.map(({ name }) => name))
  return Object.keys(env)
    .filter((name) => name !== CONFIG_FILE.name && !known.has(name) && !name.startsWith('BATON__'))
    .flatMap((name) => {
      const ignored = `${name} is not a setting of Baton and is ignored`
      // Many images read a secret from the file that such a variable names; an entry point may have done so.
      const held = name.replace(/_FILE$/, '')
      if (known.has(held) && !given(env, held)) return [`${ignored}; set ${held} to what the file holds`]
      if (!name.startsWith('BATON_')) return []
      const plain = name.slice('BATON_'.length)
      if (known.has(plain)) return [`${ignored}; the setting is named ${plain}`]
      return [plain.includes('__') ? `${ignored}; a path of the file is written BATON__${plain}` : ignored]
    })
}

/** Many programs read either name. */
function misnamedFile(path: string): string[] {
  const other = path.replace(/\.yaml$/, '.yml')
  if (existsSync(path) || !existsSync(other)) return []
  return [`${other} is not read; end its name in .yaml, or name it in ${CONFIG_FILE.name}`]
}

function advice(values: SettingValues): string[] {
  const warnings: string[] = []
  if (authOf(values) === 'keys' && values.admin_key === null) {
    const when = values.database_url === null ? ' before the gateway starts' : ''
    warnings.push(
      `BATON_ADMIN_KEY is not set; set it, or make a first key${when} with: npm run -s baton -- keys create --owner <owner> --scope admin`,
    )
  }
  if (values.admin_key !== null && values.admin_key.length < 16) {
    warnings.push('BATON_ADMIN_KEY is shorter than 16 characters and easy to guess')
  }
  if (values.database_url !== null && values.redis_url === null) {
    warnings.push('DATABASE_URL is set without REDIS_URL: run one replica only')
  }
  if (values.connectors_proxy !== 'none' && values.https_proxy === null) {
    warnings.push('BATON_CONNECTORS_PROXY is set without HTTPS_PROXY: connectors use no proxy')
  }
  return warnings
}

function deepFreeze<T>(value: T): T {
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return value
  for (const member of Object.values(value)) deepFreeze(member)
  return Object.freeze(value)
}
