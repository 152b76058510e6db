/** Commands about logins and credentials. */
import { PROVIDER_IDS, type ProviderId } from '../config/settings.ts'
import type { CredentialView } from '../credentials/credentials.ts'
import type { Login } from '../credentials/logins.ts'
import { inFull } from '../errors.ts'
import { LOGIN_MODES, type LoginMode } from '../oauth-vendor.ts'
import type { Access } from './access.ts'
import { type Command, type Given, show, TARGET, tell, UsageError } from './command.ts'

const POLL_MS = 1_000
/** Else the browser would call its own machine, and the login would never arrive. */
const ELSEWHERE =
  'The browser must run on the machine of the gateway. If it does not, stop here and use --mode paste.'
/** Most failures in a row: a gateway that was restarted answers again by then. */
const MOST_FAILURES = 10

export const CREDENTIAL_COMMANDS: readonly Command[] = [
  {
    name: 'login',
    usage: '[--mode loopback|paste|device]',
    summary: "Log in at a provider's page; the provider must be in BATON_ENABLE_OAUTH",
    takes: ['provider'],
    options: { ...TARGET, mode: { type: 'string' } },
    async run(given) {
      const provider = providerOf(given)
      const mode = modeOf(given.text('mode'))
      const access = await given.access()
      const login = await access.authorize(provider, mode)
      given.io.note('Open this page and log in:')
      given.io.say(given.flag('json') ? JSON.stringify(login) : login.authorization_url)
      if (login.user_code) given.io.note(`Enter there: ${login.user_code}`)
      if (login.mode === 'loopback') given.io.note(ELSEWHERE)
      const id = await (login.mode === 'paste' ? pasted : awaited)(given, access, provider, login)
      tell(given, { credential_id: id }, `Logged in: ${id}`)
      return 0
    },
  },
  {
    name: 'logout',
    usage: '',
    summary: 'Delete a credential',
    takes: ['credential'],
    options: TARGET,
    async run(given) {
      const [id = ''] = given.args
      await (await given.access()).deleteCredential(id)
      const words = `${id} is deleted here. The provider may still list its login: end it there, too.`
      tell(given, { id, state: 'deleted' }, words)
      return 0
    },
  },
  {
    name: 'import',
    usage: '',
    summary: "Take over a login file of a provider's own tool: codex, gemini-cli, claude, anthropic-profile",
    takes: ['provider', 'format', 'file'],
    options: TARGET,
    async run(given) {
      const provider = providerOf(given)
      const [, format = '', file = ''] = given.args
      const content = given.io.readFile(file)
      const access = await given.access()
      const made = await access.importFile(provider, format, content).catch((failure: unknown) => {
        throw isFormatError(failure) ? new UsageError(inFull(failure)) : failure
      })
      given.io.note(made.warning)
      show(given, [made], COLUMNS)
      return 0
    },
  },
  {
    name: 'credentials',
    usage: '',
    summary: 'List credentials; secrets are never shown',
    takes: [],
    options: TARGET,
    async run(given) {
      const access = await given.access()
      show(given, await access.credentials(), COLUMNS)
      return 0
    },
  },
]

const COLUMNS: Readonly<Record<string, (row: CredentialView) => string | null>> = {
  id: ({ id }) => id,
  owner: ({ owner }) => owner,
  provider: ({ provider }) => provider,
  kind: ({ kind }) => kind,
  hint: ({ hint }) => `…${hint}`,
  name: ({ name }) => name,
  state: ({ state, reason }) => (reason === null ? state : `${state} (${reason})`),
  default: (row) => (row.default ? 'default' : null),
}

function oneOf<T extends string>(what: string, known: readonly T[], given: string | undefined): T {
  const found = known.find((one) => one === given)
  if (found) return found
  throw new UsageError(`${what} must be one of: ${known.join(', ')}.`)
}

const providerOf = ({ args }: Given): ProviderId => oneOf('<provider>', PROVIDER_IDS, args[0])

const modeOf = (text: string | undefined): LoginMode | null =>
  text === undefined ? null : oneOf('--mode', LOGIN_MODES, text)

/** A refused format is wrong usage: only the installation knows which formats a provider has. */
const isFormatError = (failure: unknown): boolean =>
  failure instanceof Error && 'param' in failure && failure.param === 'format'

/** A key that was revoked or has expired stays refused: asking again is useless. */
const isKeyError = (failure: unknown): boolean =>
  failure instanceof Error && 'code' in failure && failure.code === 'unauthenticated'

async function pasted({ io }: Given, access: Access, provider: string, { state }: Login): Promise<string> {
  const text = await io.ask('Paste what the page shows, or the address that the browser ended at: ')
  if (text === null || text.trim() === '')
    throw new UsageError('Nothing was pasted; the login is not finished.')
  return (await access.exchange(provider, state, text.trim())).id
}

/**
 * Waits until the answer comes by itself, or the login's time runs out. The login goes on at the gateway even while
 * that cannot be reached.
 */
async function awaited({ io }: Given, access: Access, provider: string, { state }: Login): Promise<string> {
  for (let failures = 0; ; ) {
    const status = await access.status(provider, state).catch((failure: unknown) => {
      if (isKeyError(failure) || ++failures === MOST_FAILURES) throw failure
      return null
    })
    if (status) failures = 0
    if (status?.state === 'done') return status.credential_id ?? ''
    if (status?.state === 'failed') throw new Error(status.error ?? 'The provider refused the login.')
    if (status?.state === 'expired') throw new Error('The login took too long; begin a new one.')
    await io.sleep(POLL_MS)
  }
}
