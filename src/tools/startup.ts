/**
 * The configured servers at start: all are reached in parallel, and anything that the operator did not foresee stops
 * the start, with words that name the remedy (api.md section 1). Afterwards the same rules only warn.
 */
import type { Logger } from 'pino'
import type { Config, McpSetting, Toolbox } from '../config/config.ts'
import { EX_CONFIG } from '../config/load.ts'
import { ATTEMPT_MS, type Mcp, McpError, type McpServerSpec } from '../mcp/contract.ts'
import { openSandbox, type Sandbox } from '../mcp/sandbox.ts'
import type { Connector } from '../store/store.ts'
import { oneLine } from '../text.ts'
import { isOffered, offered } from './offered.ts'
import { redactText } from './redact.ts'
import type { ToolboxPolicy } from './toolbox.ts'

/** From sysexits.h */
const EX_UNAVAILABLE = 69
/** Tools of one list of a caller's server that the log names: thousands of them would push all else out of it. */
const MOST_TOLD = 100

/** What stops the start: plain text, one block for each reason. */
export class StartupError extends Error {
  readonly exitCode: number
  constructor(blocks: readonly string[], exitCode: number) {
    super(blocks.join('\n\n'))
    this.name = 'StartupError'
    this.exitCode = exitCode
  }
}

/** The sandbox around stdio servers. Throws StartupError if it is wanted and cannot be had. */
export function sandboxOf({ stdioIsolation, dataDir, file }: Config): Promise<Sandbox | null> {
  return openSandbox({ isolation: stdioIsolation, hidden: [dataDir, file] }).catch((failure: Error) => {
    throw new StartupError([failure.message], EX_CONFIG)
  })
}

interface ToolboxRules {
  /** Reaches every configured server. Throws StartupError. */
  check(): Promise<void>
  /**
   * A server's list came (`before` is null) or moved while serving: logs what that means, and stops nothing. Connectors
   * made by the API follow the same rules. Never rejects.
   */
  note(connector: Connector, before: readonly string[] | null, after: readonly string[]): Promise<void>
}

interface ToolboxRulesDeps {
  toolbox: Toolbox
  connectors: readonly Connector[]
  policy: Pick<ToolboxPolicy, 'admit' | 'limits'>
  mcp: Pick<Mcp, 'list'>
  specFor(connector: Connector): McpServerSpec
  builtins: readonly string[]
  log: Logger
}

type Reached = { setting: McpSetting; connector: Connector } & ({ tools: string[] } | { cause: string })

/** Makes the rules; nothing is reached before `check`. */
export function createToolboxRules(deps: ToolboxRulesDeps): ToolboxRules {
  const { toolbox, policy, log } = deps
  /** What each connector listed at the start */
  const listedAtStart = new Map<string, readonly string[]>()

  async function reach(setting: McpSetting): Promise<Reached> {
    const connector = deps.connectors.find(({ name }) => name === setting.name)
    if (!connector) throw new Error(`server ${setting.name} has no row`)
    try {
      // The door gives the server its time for each request. A limit for all of them would also count the time that a
      // busy machine takes to load the door's code.
      const list = await deps.mcp.list(deps.specFor(connector), { timeoutMs: ATTEMPT_MS })
      const names = list.tools.map(({ name }) => name)
      for (const denial of idleDenials(connector, names)) log.warn(deniesNothing(denial, connector.name))
      return { setting, connector, tools: names.filter((name) => isOffered(connector, name)) }
    } catch (thrown) {
      const words = thrown instanceof McpError ? thrown.forOperator : thrown
      const cause = words instanceof Error ? words.message : String(words)
      // A program may have printed a secret that it did not get from here, such as a token in a file of its own.
      return { setting, connector, cause: await redactText(cause) }
    }
  }

  /** Logs what the rules make of a list's tools. */
  function report(connector: Connector, tools: readonly string[], isNew: boolean): void {
    for (const tool of tools) {
      const admitted = policy.admit(connector, tool)
      if (!admitted.ok) {
        log.warn({ tool: oneLine(tool), server: connector.name }, unconfigured(tool, connector.name))
      } else if (!admitted.configured) {
        log.info(isNew ? newTool(tool, connector.name) : byDefault(tool, connector.name))
      } else {
        const limits = policy.limits({ canonical_name: '', mcp_tool_name: tool }, connector)
        log.debug({ tool: oneLine(tool), server: connector.name, ...limits }, 'tool configuration merged')
      }
    }
  }

  return {
    async check() {
      const reached = await Promise.all(toolbox.mcps.map(reach))
      const down = reached.flatMap((one) =>
        'cause' in one ? [unreachableBlock(one.setting, one.cause)] : [],
      )
      const up = reached.flatMap((one) => ('tools' in one ? [one] : []))
      const unforeseen = up.flatMap(({ connector, tools }) =>
        unforeseenIn(tools, connector, policy).map((tool) => strictBlock(toolbox, connector.name, tool)),
      )
      if (unforeseen.length + down.length > 0) {
        throw new StartupError([...unforeseen, ...down], unforeseen.length > 0 ? EX_CONFIG : EX_UNAVAILABLE)
      }
      for (const { setting, connector, tools } of up) {
        if (tools.length === 0) log.warn(noTools(setting))
        listedAtStart.set(connector.id, tools)
        report(connector, tools, false)
      }
      for (const warning of configuredButAbsent(toolbox, up, deps.builtins)) log.warn(warning)
      for (const warning of ambiguous(toolbox, up, deps.builtins)) log.warn(warning)
    },
    async note(connector, before, after) {
      const known = before ?? listedAtStart.get(connector.id)
      const mine = await offered(connector, after, (tool) => tool)
      if (mine.length === 0 && known?.length !== 0) log.warn(noTools(connector))
      const fresh = mine.filter((tool) => !known?.includes(tool))
      const told = connector.origin === 'api' ? fresh.slice(0, MOST_TOLD) : fresh
      report(connector, told, known !== undefined)
      if (told.length < fresh.length) log.info(moreTools(fresh.length - told.length, connector.name))
      for (const tool of (known ?? []).filter((name) => !after.includes(name))) {
        const admitted = policy.admit(connector, tool)
        if (admitted.ok && admitted.configured) log.warn(goneTool(tool, connector.name))
      }
    },
  }
}

/** Tools of a configured server that stop the start. */
export const unforeseenIn = (
  tools: readonly string[],
  connector: Connector,
  policy: Pick<ToolboxPolicy, 'admit'>,
): string[] => tools.filter((tool) => isOffered(connector, tool) && !policy.admit(connector, tool).ok)

const unconfigured = (tool: string, server: string) =>
  `Tool '${oneLine(tool)}' from MCP server '${server}' is not configured in the toolbox.`
const byDefault = (tool: string, server: string) =>
  `Tool '${oneLine(tool)}' from MCP '${server}' not explicitly configured, using default configuration`
const newTool = (tool: string, server: string) =>
  `New tool '${oneLine(tool)}' discovered from MCP server '${server}', registering with default configuration`
const moreTools = (count: number, server: string) => `${count} more tools came from MCP server '${server}'`
const goneTool = (tool: string, server: string) =>
  `Tool '${oneLine(tool)}' was configured but is no longer available from MCP server '${server}'`

const deniesNothing = (denial: string, server: string) =>
  `'${denial}' in deny_tools of MCP server '${server}' is none of its tools: name them as the server does`

const noTools = (server: Place & { name: string }) =>
  `MCP server '${server.name}' at ${placeOf(server)} returned no tools`

type Place = { url?: string | null; command?: string | null; origin?: Connector['origin'] }
/** Arguments of a program may hold secrets, and so may a query; the path of a caller's server is the caller's alone. */
const placeOf = ({ url, command, origin }: Place): string =>
  (origin === 'api' && url ? new URL(url).origin : url?.replace(/\?.*$/s, '')) ?? command ?? ''

function strictBlock(toolbox: Toolbox, server: string, listed: string): string {
  const tool = oneLine(listed)
  const names = toolbox.tools.map(({ name }) => name).join(', ')
  return [
    unconfigured(listed, server),
    `MCP Server: ${server}`,
    'Mode: strict',
    `Missing Tool: ${tool}`,
    `Configured tools: [${names}]`,
    'To resolve:',
    `  1. Name it under toolbox.tools:  - name: ${server}.${tool}`,
    `  2. Or let the server bring its tools: set mode: dynamic with default_tool_config for '${server}'`,
  ].join('\n')
}

const unreachableBlock = (setting: McpSetting, cause: string): string =>
  [
    `Failed to connect to MCP server '${setting.name}' at ${placeOf(setting)}`,
    `Error: ${oneLine(cause, 2_000)}`,
    'The application cannot start without connecting to all configured MCP servers.',
  ].join('\n')

type Up = { setting: McpSetting; tools: string[] }

/** What denies nothing: canonical names, as `toolbox.tools` has them, and slips. Other globs may be a precaution. */
function idleDenials({ name, deny_tools }: Connector, tools: readonly string[]): string[] {
  const isCanonical = (text: string) => text.startsWith(`${name}.`)
  const isIdle = (glob: string) =>
    /[*?]/.test(glob) ? isCanonical(glob) && !tools.some(isCanonical) : !tools.includes(glob)
  return deny_tools.filter(isIdle)
}

/** A name with a server belongs to that server; a bare name belongs to every server and built-in that has it. */
function configuredButAbsent(toolbox: Toolbox, up: readonly Up[], builtins: readonly string[]): string[] {
  return toolbox.tools.flatMap(({ name }) => {
    const owner = up.find(({ setting }) => name.startsWith(`${setting.name}.`))
    if (owner) {
      const tool = name.slice(owner.setting.name.length + 1)
      return owner.tools.includes(tool) ? [] : [goneTool(tool, owner.setting.name)]
    }
    if (builtins.includes(name) || up.some(({ tools }) => tools.includes(name))) return []
    if (up.length === 0) return [`Tool '${name}' is configured, but no MCP server is`]
    // A connector made by the API may have that server's name, now or later.
    const [, server] = /^([a-z][a-z0-9-]{0,31})\./.exec(name) ?? []
    return server
      ? [`Tool '${name}' is configured, but no MCP server '${server}' is`]
      : [goneTool(name, up.map(({ setting }) => setting.name).join("', '"))]
  })
}

/** A bare name that several have applies to all of them, which may not be what was meant. */
function ambiguous(toolbox: Toolbox, up: readonly Up[], builtins: readonly string[]): string[] {
  return toolbox.tools.flatMap(({ name }) => {
    const holders = up.filter(({ tools }) => tools.includes(name)).map(({ setting }) => setting.name)
    if (builtins.includes(name)) holders.push('the built-ins')
    if (holders.length < 2) return []
    return [
      `Tool '${name}' is offered by ${holders.join(', ')}; its configuration applies to all of them. Use server.${name} to tell them apart`,
    ]
  })
}
