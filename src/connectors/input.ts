/** A connector as callers ask for it: the shape that it must have, what a patch keeps, and the row that it becomes. */
import type { McpSetting } from '../config/config.ts'
import { type ConnectorInput, DEFAULT_LIMITS, shapeProblems } from '../config/connector-shape.ts'
import { type ConnectorSecret, openConnector, sealConnector } from '../credentials/connector-secret.ts'
import type { Vault } from '../credentials/vault.ts'
import { durationMs } from '../duration.ts'
import { invalid } from '../errors.ts'
import { givenIn, type McpLogin } from '../mcp/oauth.ts'
import type { Connector, NewConnector } from '../store/store.ts'
import type { Problem } from '../validation.ts'

/**
 * A connector keeps its transport. Secrets that the patch does not give stay, as long as the server is the one they
 * were given for.
 */
export type ConnectorPatch = Partial<Omit<ConnectorInput, 'transport'>>

/** A call holds a slot of the toolbox, which all owners share, so its time is bounded. */
const LONGEST_TIMEOUT = 'PT1H'

/**
 * Most `*` in one list of names. A hundred thousand of them, matched against a server's names, stop the event loop for
 * seconds; so would a thousand long names with `?`, whose every character counts as one.
 */
const MOST_STARS = 1000

/** `given`: what of it is given now. Throws invalid_request at the first field that is wrong. */
export function assertShape(input: ConnectorInput, given: ConnectorPatch): void {
  const { transport, auth } = input
  const [first] = shapeProblems(input)
  if (first) throw invalid(first.path, inWords(first))
  if (transport === 'stdio' && auth !== undefined && auth.type !== 'none') {
    throw invalid('auth', 'auth does not belong to transport stdio; leave it out.')
  }
  const hasToken = Object.keys(input.headers ?? {}).some((name) => name.toLowerCase() === 'authorization')
  if (auth?.type === 'oauth' && hasToken) {
    throw invalid('headers', 'With auth oauth the login makes the Authorization; take it out of the headers.')
  }
  // One that was stored with both, before that was refused, can be changed otherwise.
  const isGiven = given.auth !== undefined || given.headers !== undefined
  if (auth?.token !== undefined && hasToken && isGiven) {
    throw invalid('headers', 'auth.token makes the Authorization; take it out of the headers.')
  }
  if (auth?.type === 'bearer' && auth.token === undefined && !hasToken) {
    throw invalid('auth.token', 'auth.token is required, or an Authorization among the headers.')
  }
}

/** A problem as one sentence; a header or variable is called by its own name. */
function inWords({ path, problem, remedy }: Problem): string {
  const [, name] = /^(?:headers|env)\.(.*)$/s.exec(path) ?? []
  const advice = remedy && `; ${remedy.charAt(0).toLowerCase()}${remedy.slice(1)}`
  return `${name === undefined ? path : `"${name}"`} ${problem}${advice}.`
}

/**
 * Most bytes of a field, as JSON. A turn reads the connectors of all servers that its session binds: with a hundred of
 * megabytes each, a text would come of it that Node cannot hold.
 */
const MOST_BYTES = 128 << 10

/**
 * Checks limits that are given now: those that were stored before there was a bound stay as they are. Throws
 * invalid_request.
 */
export function assertLimits(given: ConnectorPatch): void {
  for (const [field, value] of Object.entries(given)) {
    const isLong = Buffer.byteLength(JSON.stringify(value)) > MOST_BYTES
    if (isLong) throw invalid(field, `${field} must be at most 128 KiB of JSON.`)
  }
  const { default_tool_config, ...globs } = given
  const { timeout = DEFAULT_LIMITS.timeout } = default_tool_config ?? {}
  if (durationMs(timeout) > durationMs(LONGEST_TIMEOUT)) {
    const words = `timeout is at most ${LONGEST_TIMEOUT} here; the operator can give a tool more in the configuration (toolbox.tools).`
    throw invalid('default_tool_config.timeout', words)
  }
  for (const field of ['allow_tools', 'deny_tools'] as const) {
    const stars = (globs[field] ?? []).reduce((sum, glob) => sum + starsIn(glob), 0)
    const words = `${field} may hold * at most ${MOST_STARS} times; a name with ? counts as often as it has characters.`
    if (stars > MOST_STARS) throw invalid(field, words)
  }
}

const starsIn = (glob: string): number => (glob.includes('?') ? glob.length : glob.split('*').length - 1)

/** The row for what was asked for, with defaults filled in. */
export function rowOf(
  vault: Pick<Vault, 'seal'>,
  { id, owner, origin }: Pick<Connector, 'id' | 'owner' | 'origin'>,
  input: ConnectorInput,
  kept: McpLogin | null = null,
): NewConnector {
  const { auth } = input
  const login = loginIn(auth) ?? kept
  const secret: ConnectorSecret = {
    headers: input.headers ?? {},
    env: input.env ?? {},
    ...(auth?.type === 'bearer' && auth.token !== undefined ? { bearer: auth.token } : {}),
    ...(auth?.type === 'oauth' && login ? { oauth: login } : {}),
  }
  return {
    id,
    owner,
    origin,
    name: input.name,
    transport: input.transport,
    url: input.url ?? null,
    command: input.command ?? null,
    args: input.args ?? [],
    auth: { type: auth?.type ?? 'none' },
    mode: input.mode ?? 'dynamic',
    default_tool_config: { ...DEFAULT_LIMITS, ...input.default_tool_config },
    allow_tools: input.allow_tools ?? [],
    deny_tools: input.deny_tools ?? [],
    require_approval: input.require_approval ?? 'never',
    trust_annotations: input.trust_annotations ?? false,
    pin: input.pin ?? 'warn',
    secret: sealConnector(vault, { owner, id }, secret),
  }
}

/** The connector with a patch applied, to be checked as a whole, and the login that it keeps. */
export function patched(
  vault: Pick<Vault, 'open'>,
  before: Connector,
  patch: ConnectorPatch,
): { input: ConnectorInput; login: McpLogin | null } {
  const secret = secretFor(opened(vault, before), before, patch)
  const input = { ...inputOf(before, secret), ...patch }
  // `auth` is the same if left out or given as GET shows it. If it gives a client, the login starts over (rowOf).
  const isSameAuth = patch.auth === undefined || patch.auth.type === before.auth.type
  return { input, login: isSameAuth ? loginAfter(secret.oauth, before, patch) : null }
}

/**
 * A login ends with any change of the address. What callers gave for its login service stays while the origin does,
 * like other secrets.
 */
function loginAfter(held: McpLogin | undefined, before: Connector, patch: ConnectorPatch): McpLogin | null {
  if (patch.url === undefined || patch.url === before.url) return held ?? null
  return leadsElsewhere(before, patch) ? null : toldIn(held)
}

/** The inverse of `rowOf`. */
function inputOf(row: Connector, { headers, env, bearer }: ConnectorSecret): ConnectorInput {
  const isStdio = row.transport === 'stdio'
  return {
    name: row.name,
    transport: row.transport,
    ...(row.url === null ? {} : { url: row.url }),
    ...(row.command === null ? {} : { command: row.command }),
    ...(isStdio ? { args: row.args, env } : { headers }),
    auth: { type: row.auth.type, ...(bearer === undefined ? {} : { token: bearer }) },
    mode: row.mode,
    default_tool_config: row.default_tool_config,
    allow_tools: row.allow_tools,
    deny_tools: row.deny_tools,
    require_approval: row.require_approval,
    trust_annotations: row.trust_annotations,
    pin: row.pin,
  }
}

/** The connector's secret. Null: its encryption key is gone. The connector can still be seen, changed and deleted. */
export function opened(vault: Pick<Vault, 'open'>, row: Connector): ConnectorSecret | null {
  try {
    return openConnector(vault, row)
  } catch {
    return null
  }
}

/**
 * The secrets that a patched connector keeps. None that cannot be opened is dropped silently, and none goes to another
 * server than the one it was given for: the patch must give new ones in their place.
 */
function secretFor(held: ConnectorSecret | null, before: Connector, patch: ConnectorPatch): ConnectorSecret {
  const sealed = held ? fieldsOf(held) : fieldsOfSealed(before)
  const lacking = sealed.filter((field) => patch[field] === undefined)
  const [param] = lacking
  if (param === undefined || (held && !leadsElsewhere(before, patch))) return held ?? { headers: {}, env: {} }
  const why = held
    ? 'what is stored was given for another server, and is not sent to this one'
    : 'what is stored cannot be opened, since its encryption key is gone'
  throw invalid(param, `${lacking.join(' and ')} must be given again: ${why}.`)
}

type Sealed = 'headers' | 'auth' | 'env'

const fieldsOf = ({ headers, env, bearer, oauth }: ConnectorSecret): Sealed[] => [
  ...(Object.keys(headers).length > 0 ? (['headers'] as const) : []),
  ...(bearer === undefined && !toldIn(oauth) ? [] : (['auth'] as const)),
  ...(Object.keys(env).length > 0 ? (['env'] as const) : []),
]

const fieldsOfSealed = ({ transport, auth }: Connector): Sealed[] =>
  transport === 'stdio' ? ['env'] : auth.type === 'none' ? ['headers'] : ['headers', 'auth']

/** Whether a patch leads to another origin, or to a program that is started differently. */
function leadsElsewhere(before: Connector, { url, command, args }: ConnectorPatch): boolean {
  const originOf = (text: string | null) =>
    text !== null && URL.canParse(text) ? new URL(text).origin : text
  if (before.transport !== 'stdio') return url !== undefined && originOf(url) !== originOf(before.url)
  return (
    (command !== undefined && command !== before.command) ||
    (args !== undefined && JSON.stringify(args) !== JSON.stringify(before.args))
  )
}

const orNull = (login: McpLogin): McpLogin | null => (Object.keys(login).length === 0 ? null : login)

/**
 * What callers gave for the server's login service: a client registered there by hand, its issuer, scopes to ask for.
 */
const toldIn = (login: McpLogin | undefined): McpLogin | null => orNull(givenIn(login))

/** The same, from `auth` of the input. */
function loginIn(auth: ConnectorInput['auth']): McpLogin | null {
  const { client_id, client_secret, issuer, scope } = auth ?? {}
  return orNull({
    ...(client_id !== undefined && {
      client: { client_id, ...(client_secret !== undefined && { client_secret }) },
    }),
    ...(issuer !== undefined && { issuer }),
    ...(scope !== undefined && { scope }),
  })
}

/** The id of a server of the configuration. */
export const configuredId = (name: string): string => `con_config_${name}`

/** The configuration's servers as rows for `store.connectors.syncConfig`; their ids come from their names. */
export const configConnectors = (
  settings: readonly McpSetting[],
  vault: Pick<Vault, 'seal'>,
): NewConnector[] =>
  settings.map((mcp) => rowOf(vault, { id: configuredId(mcp.name), owner: 'config', origin: 'config' }, mcp))
