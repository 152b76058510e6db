/**
 * Every single setting as data: its environment variable, default, meaning and reader. The loader reads
 * by this table, the documentation is checked against it. A setting may also stand in the YAML file under
 * its variable's name in lower case without the prefix (`BATON_BODY_LIMIT` → `body_limit`).
 */
import {
  address,
  bytes,
  encryptionKeys,
  flag,
  folder,
  forwardProxy,
  headerText,
  list,
  oneOf,
  openNetworks,
  origins,
  port,
  postgresServer,
  redisServer,
  retention,
  text,
  upstream,
  whole,
} from './readers.ts'

/** The ids that sessions, credentials and settings name; each has its adapter in providers/. */
export const PROVIDER_IDS = ['openai', 'anthropic', 'gemini'] as const
export type ProviderId = (typeof PROVIDER_IDS)[number]

/** How one setting is given and read. `read` throws UnfitValue. */
export interface Setting<T> {
  /** The environment variable */
  name: string
  /** The name that many programs use for it, too */
  also?: string
  /** Its text, as one would write it; null: not set */
  fallback: string | null
  meaning: string
  read(text: string): T
}

const required = <T>(name: string, fallback: string, read: (text: string) => T, meaning: string) => ({
  name,
  fallback,
  meaning,
  read,
})
const optional = <T>(name: string, read: (text: string) => T, meaning: string) => ({
  name,
  fallback: null,
  meaning,
  read: (text: string): T | null => read(text),
})

const providers = (value: string): ProviderId[] => list(value).map(oneOf(...PROVIDER_IDS))

/** All settings, by their key in the YAML file. */
export const SETTINGS = {
  host: required('BATON_HOST', '127.0.0.1', address, 'Address to listen on.'),
  port: required('BATON_PORT', '8787', port, 'Port to listen on; 0 takes a free one.'),
  public_url: optional(
    'BATON_PUBLIC_URL',
    upstream,
    'Where browsers reach the gateway. Logins at MCP servers return to it; if it is a public https address, their login services also read there who the gateway is. Default: BATON_HOST and BATON_PORT on a loopback host.',
  ),
  data_dir: required('BATON_DATA_DIR', '.baton', folder, 'Folder of the embedded database and its key file.'),
  database_url: optional(
    'DATABASE_URL',
    postgresServer,
    'PostgreSQL server. Not set: the embedded database.',
  ),
  redis_url: optional('REDIS_URL', redisServer, 'Redis server. Not set: events stay in the process.'),
  log_level: required(
    'BATON_LOG_LEVEL',
    'info',
    oneOf('fatal', 'error', 'warn', 'info', 'debug', 'trace'),
    'Least severe log line that is written.',
  ),
  auth: optional(
    'BATON_AUTH',
    oneOf('off', 'keys'),
    '`keys`: every call needs a key. Default: `off` on a loopback host, else `keys`.',
  ),
  admin_key: optional('BATON_ADMIN_KEY', headerText, 'A bootstrap admin key, to make the first keys with.'),
  cors_origins: required(
    'BATON_CORS_ORIGINS',
    '',
    origins,
    'Origins whose pages may call, separated by commas.',
  ),
  body_limit: required(
    'BATON_BODY_LIMIT',
    '32MiB',
    bytes,
    'Largest request body; a larger one is refused with 413.',
  ),
  rate_limit_per_minute: optional(
    'BATON_RATE_LIMIT_PER_MINUTE',
    whole(1, 1_000_000),
    'Most calls of one key in a minute, over all replicas; more are refused with 429. BATON_ADMIN_KEY is exempt. Default: no limit.',
  ),
  turns_per_owner: optional(
    'BATON_TURNS_PER_OWNER',
    whole(1, 1_000_000),
    'Most turns of one owner that run or are queued, over all replicas; more are refused with 429. Concurrent requests may pass the limit together. Default: no limit.',
  ),
  drain_seconds: required(
    'BATON_DRAIN_SECONDS',
    '30',
    whole(0, 3600),
    'How long running turns may take to reach a step boundary at shutdown.',
  ),
  lease_seconds: required(
    'BATON_LEASE_SECONDS',
    '15',
    whole(1, 600),
    'How long a silent replica keeps its turns before another takes them over.',
  ),
  approval_seconds: required(
    'BATON_APPROVAL_SECONDS',
    '86400',
    whole(1, 30 * 86_400),
    'How long a tool call waits for a decision before it counts as denied.',
  ),
  tool_wait_seconds: required(
    'BATON_TOOL_WAIT_SECONDS',
    '10',
    whole(1, 3600),
    'How long a tool call waits for a free slot before the model is told that the tool is busy.',
  ),
  ledger_retention: required(
    'BATON_LEDGER_RETENTION',
    'P90D',
    retention,
    'How long ended tool calls and their outputs are kept, as an ISO 8601 duration, or `forever`.',
  ),
  connectors_allow_private: optional(
    'BATON_CONNECTORS_ALLOW_PRIVATE',
    openNetworks,
    'Opens private addresses to connectors: `true`, or CIDRs, hosts and `*.suffix`. Default: `true` while auth is off.',
  ),
  allow_stdio_connectors: required(
    'BATON_ALLOW_STDIO_CONNECTORS',
    'false',
    flag,
    'Lets connectors of API callers start programs on this machine.',
  ),
  stdio_isolation: required(
    'BATON_STDIO_ISOLATION',
    'none',
    oneOf('none', 'bubblewrap', 'bubblewrap-network'),
    'What MCP servers that are programs run in: `bubblewrap` gives them a read-only file system without the ' +
      "gateway's data, a `/tmp` and processes of their own, and no network; `bubblewrap-network` leaves them the network.",
  ),
  enable_oauth: required(
    'BATON_ENABLE_OAUTH',
    '',
    providers,
    'Providers whose OAuth logins may be used, separated by commas.',
  ),
  encryption_keys: optional(
    'BATON_ENCRYPTION_KEYS',
    encryptionKeys,
    '`id:base64[,id:base64…]`, 32 bytes each (`openssl rand -base64 32`); the first encrypts, all decrypt. Required with DATABASE_URL; ' +
      'embedded, a key file in the data folder is made when it is not set.',
  ),
  https_proxy: {
    ...optional('HTTPS_PROXY', forwardProxy, 'Forward proxy for requests to providers and their logins.'),
    also: 'https_proxy',
  },
  no_proxy: {
    ...required(
      'NO_PROXY',
      '',
      (value) => value,
      'Hosts and domains that HTTPS_PROXY is not for, separated by commas; ranges of addresses are not read, and loopback hosts never need it.',
    ),
    also: 'no_proxy',
  },
  connectors_proxy: required(
    'BATON_CONNECTORS_PROXY',
    'none',
    oneOf('none', 'address', 'name'),
    'Whether HTTPS_PROXY is for connectors, too, and what it is asked for: `address`, the one that was resolved and checked here; ' +
      '`name`, the host, which the proxy resolves: then the proxy must refuse private addresses itself.',
  ),
  openai_base_url: required(
    'BATON_OPENAI_BASE_URL',
    'https://api.openai.com/v1',
    upstream,
    'Root of the OpenAI API.',
  ),
  chatgpt_base_url: required(
    'BATON_CHATGPT_BASE_URL',
    'https://chatgpt.com/backend-api/codex',
    upstream,
    'Root that ChatGPT logins are served from.',
  ),
  anthropic_base_url: required(
    'BATON_ANTHROPIC_BASE_URL',
    'https://api.anthropic.com',
    upstream,
    'Root of the Anthropic API.',
  ),
  gemini_base_url: required(
    'BATON_GEMINI_BASE_URL',
    'https://generativelanguage.googleapis.com/v1beta',
    upstream,
    'Root of the Gemini API.',
  ),
  code_assist_base_url: required(
    'BATON_CODE_ASSIST_BASE_URL',
    'https://cloudcode-pa.googleapis.com/v1internal',
    upstream,
    'Root that Code Assist logins are served from.',
  ),
  openai_oauth_issuer: required(
    'BATON_OPENAI_OAUTH_ISSUER',
    'https://auth.openai.com',
    upstream,
    'Issuer of OpenAI logins.',
  ),
  openai_oauth_client_id: optional(
    'BATON_OPENAI_OAUTH_CLIENT_ID',
    text,
    "OAuth client for OpenAI logins. Not set: the vendor's public one.",
  ),
  anthropic_oauth_authorize_url: required(
    'BATON_ANTHROPIC_OAUTH_AUTHORIZE_URL',
    'https://claude.ai/oauth/authorize',
    upstream,
    'Where an Anthropic login begins.',
  ),
  anthropic_oauth_token_url: required(
    'BATON_ANTHROPIC_OAUTH_TOKEN_URL',
    'https://platform.claude.com/v1/oauth/token',
    upstream,
    'Token endpoint of Anthropic logins.',
  ),
  anthropic_oauth_client_id: optional(
    'BATON_ANTHROPIC_OAUTH_CLIENT_ID',
    text,
    'OAuth client for Anthropic logins.',
  ),
  google_oauth_authorize_url: required(
    'BATON_GOOGLE_OAUTH_AUTHORIZE_URL',
    'https://accounts.google.com/o/oauth2/v2/auth',
    upstream,
    'Where a Google login begins.',
  ),
  google_oauth_token_url: required(
    'BATON_GOOGLE_OAUTH_TOKEN_URL',
    'https://oauth2.googleapis.com/token',
    upstream,
    'Token endpoint of Google logins.',
  ),
  google_oauth_client_id: optional('BATON_GOOGLE_OAUTH_CLIENT_ID', text, 'OAuth client for Google logins.'),
  google_oauth_client_secret: optional(
    'BATON_GOOGLE_OAUTH_CLIENT_SECRET',
    text,
    'Secret of the OAuth client for Google logins.',
  ),
  code_assist_dual_declarations: required(
    'BATON_CODE_ASSIST_DUAL_DECLARATIONS',
    'true',
    flag,
    'Sends tool declarations to Code Assist in both spellings.',
  ),
  gemini_store: required(
    'BATON_GEMINI_STORE',
    'true',
    flag,
    'Whether Gemini may store requests, as it does for new paid projects; `false` asks it in each one not to. Code Assist has no such field.',
  ),
} as const satisfies Record<string, Setting<unknown>>

/** The names of upstream roots: `<base>` of the settings `<base>_base_url`. */
export type Base = keyof typeof SETTINGS extends infer Key
  ? Key extends `${infer Name}_base_url`
    ? Name
    : never
  : never

/** API keys that only the environment has: credentials with origin `env`. */
export const ENV_KEYS = {
  openai: optional('OPENAI_API_KEY', headerText, 'Makes an OpenAI credential that every owner may use.'),
  anthropic: optional(
    'ANTHROPIC_API_KEY',
    headerText,
    'Makes an Anthropic credential that every owner may use.',
  ),
  gemini: optional('GEMINI_API_KEY', headerText, 'Makes a Gemini credential that every owner may use.'),
} as const satisfies Record<ProviderId, Setting<unknown>>

/** What goes with a key of the environment. */
export const ENV_WORKSPACE = optional(
  'ANTHROPIC_WORKSPACE_ID',
  headerText,
  'Workspace that `ANTHROPIC_API_KEY` acts in, if it may act in several: a key of a person or a service account.',
)

/** Where the YAML file is. */
export const CONFIG_FILE = optional(
  'BATON_CONFIG',
  text,
  'The YAML file. Default: ./baton.yaml, if it exists.',
)

/** What the readers of SETTINGS return, by key. */
export type SettingValues = { [K in keyof typeof SETTINGS]: ReturnType<(typeof SETTINGS)[K]['read']> }
