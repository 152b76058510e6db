/** Looks at an installation and says what to do about what it finds. */
import type { Config } from '../config/config.ts'
import { ConfigError, EX_CONFIG } from '../config/load.ts'
import type { CredentialView } from '../credentials/credentials.ts'
import { inFull } from '../errors.ts'
import { oneLine } from '../text.ts'
import type { Access, TriedServer } from './access.ts'
import { type Command, type Given, TARGET, UsageError, whyNot } from './command.ts'

const ONLINE_MS = 10_000
const ONLINE_HERE =
  '--online asks the providers from this machine, by its configuration; it does not go with --url.'

export const DOCTOR: Command = {
  name: 'doctor',
  usage: '[--online]',
  summary: 'Check configuration, store, bus, credentials and MCP servers; with --online the providers, too',
  takes: [],
  options: { ...TARGET, online: { type: 'boolean' } },
  async run(given) {
    const report = createReport(given)
    // A gateway that --url names has its own configuration, not this shell's.
    if (given.text('url') !== undefined) {
      if (given.flag('online')) throw new UsageError(ONLINE_HERE)
      await checkInstallation(given, report)
      return report.end()
    }
    const config = checkConfig(given, report)
    if (!config) return report.end(EX_CONFIG)
    await checkInstallation(given, report)
    if (given.flag('online')) await checkProviders(config, report)
    return report.end()
  },
}

type Report = ReturnType<typeof createReport>

function createReport({ io, flag }: Given) {
  let bad = 0
  const isJson = flag('json')
  const line = (state: 'ok' | 'hint' | 'BAD') => (what: string) =>
    io.say(isJson ? JSON.stringify({ state: state.toLowerCase(), what }) : `${state.padEnd(5)} ${what}`)
  const sayBad = line('BAD')
  return {
    ok: line('ok'),
    /** A finding for which nothing fails now */
    hint: line('hint'),
    bad(what: string) {
      bad++
      sayBad(what)
    },
    /** The exit code: `failed` if anything is bad */
    end(failed = 1): number {
      const words = bad === 0 ? 'No problem found.' : `${bad} ${bad === 1 ? 'problem' : 'problems'} found.`
      if (!isJson) io.say(words)
      return bad === 0 ? 0 : failed
    },
  }
}

function checkConfig(given: Given, report: Report): Config | null {
  try {
    const { config, warnings } = given.load()
    report.ok(`configuration: auth ${config.auth}, ${config.databaseUrl ? 'PostgreSQL' : 'embedded'} store`)
    for (const warning of warnings) report.hint(warning)
    return config
  } catch (failure) {
    if (!(failure instanceof ConfigError)) throw failure
    for (const line of failure.message.split('\n')) report.bad(`configuration: ${line}`)
    return null
  }
}

async function checkInstallation(given: Given, report: Report): Promise<void> {
  try {
    const access = await given.access()
    const problems = await access.problems()
    for (const problem of problems) report.bad(problem)
    if (problems.length > 0) return
    report.ok(`store and bus, by ${access.place}`)
    for (const credential of await access.credentials()) judge(credential, access, report)
    for await (const tried of access.connectors()) judgeServer(tried, report)
  } catch (failure) {
    if (failure instanceof UsageError) throw failure
    // The failure ends the check of the installation, and is a finding like any other.
    report.bad(inFull(failure))
  }
}

/** Most errors of a server begin with its name, and some end with a full stop. */
const withoutName = (name: string, error: string) => error.replace(new RegExp(`^${name}:? |\\.$`, 'g'), '')

function judge(
  { id, owner, provider, state, reason, path }: CredentialView,
  { loginFor }: Pick<Access, 'loginFor'>,
  report: Report,
): void {
  if (state === 'active') return report.ok(`credential ${id} for ${provider}`)
  if (state === 'disabled') return report.hint(`credential ${id} for ${provider} is disabled`)
  // Of the two APIs of Google, the command line logs in for Code Assist alone.
  const remedy =
    path === 'public'
      ? `POST /v1/oauth/${provider}/authorize {"path":"public"}, as ${owner}`
      : `baton login ${provider}${loginFor(owner)}`
  report.bad(`credential ${id} for ${provider} needs a new login (${reason}): ${remedy}`)
}

function judgeServer({ name, error, unforeseen }: TriedServer, report: Report): void {
  if (error !== null) {
    const words = `${withoutName(name, error)}. See that it runs and that its connector is right.`
    return report.bad(`MCP server ${name}: ${words}`)
  }
  if (unforeseen.length === 0) return report.ok(`MCP server ${name}`)
  report.bad(
    `MCP server ${name} is in strict mode, and the toolbox does not name all of its tools: no gateway would start. Name them under toolbox.tools, or set mode: dynamic with default_tool_config. Missing: ${unforeseen.map((tool) => `${name}.${oneLine(tool)}`).join(', ')}`,
  )
}

/** Any answer at all means that the provider can be reached. */
async function checkProviders({ baseUrls, forwardProxy }: Config, report: Report): Promise<void> {
  const { request } = await import('undici')
  const { NoTunnelError, upstreamAgent } = await import('../outbound.ts')
  const dispatcher = upstreamAgent(forwardProxy, {})
  for (const [name, url] of Object.entries(baseUrls)) {
    try {
      const { statusCode, body } = await request(url, { dispatcher, signal: AbortSignal.timeout(ONLINE_MS) })
      await body.dump()
      report.ok(`${name} at ${url} answers (HTTP ${statusCode})`)
    } catch (failure) {
      const isProxy = failure instanceof NoTunnelError
      const remedy = isProxy ? "HTTPS_PROXY, and the proxy's rules" : 'the network and its base URL setting'
      report.bad(`${name} at ${url} cannot be reached (${whyNot(failure)}). Check ${remedy}.`)
    }
  }
  await dispatcher.destroy()
}
