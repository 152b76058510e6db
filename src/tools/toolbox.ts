/**
 * The operator's rules for tools: which may be registered, how many calls of a tool may run at once, for how long, and
 * which wait for a person. Pure; registry.ts asks before it registers, the engine before it calls.
 */
import type { Toolbox, ToolSetting } from '../config/config.ts'
import { DEFAULT_LIMITS } from '../config/connector-shape.ts'
import { durationMs } from '../duration.ts'
import type { Connector, RegistryTool } from '../store/store.ts'
import { INSPECT } from './results.ts'

type NamedTool = Pick<RegistryTool, 'canonical_name' | 'mcp_tool_name'>

interface ToolLimits {
  /** Calls of this tool at once, over all sessions and replicas */
  maxInstances: number
  timeoutMs: number
}

type Admission = { ok: true; configured: boolean } | { ok: false; reason: string }

/** The toolbox's rules, asked one at a time. */
export interface ToolboxPolicy {
  /** Whether a server's tool may be registered (api.md section 1, strict and dynamic). */
  admit(connector: Pick<Connector, 'name' | 'mode'>, tool: string): Admission
  /** A built-in is available only when the toolbox names it; `inspect_tool_output` unless switched off. */
  offersBuiltin(name: string): boolean
  limits(tool: NamedTool, connector: Connector | null): ToolLimits
  needsApproval(tool: RegistryTool, connector: Connector | null): boolean
  /** May run again after a crash: its hints say so and the operator believes them. */
  isRepeatable(tool: RegistryTool, connector: Connector | null): boolean
}

export function createToolboxPolicy(toolbox: Toolbox): ToolboxPolicy {
  const byName = new Map(toolbox.tools.map((tool) => [tool.name, tool]))
  const servers = new Set(toolbox.mcps.map(({ name }) => name))
  /**
   * A bare name applies to every server, unless it begins with a configured server's name and a dot: then it means
   * that server's tool only.
   */
  const bare = (tool: string) =>
    servers.has(tool.slice(0, Math.max(0, tool.indexOf('.')))) ? undefined : byName.get(tool)
  const settingOf = (server: string, tool: string): ToolSetting | undefined =>
    byName.get(`${server}.${tool}`) ?? bare(tool)
  const settingFor = (tool: NamedTool, connector: Connector | null) =>
    connector && tool.mcp_tool_name !== null
      ? settingOf(connector.name, tool.mcp_tool_name)
      : byName.get(tool.canonical_name)

  function limits(tool: NamedTool, connector: Connector | null): ToolLimits {
    const setting = settingFor(tool, connector)
    const defaults = connector?.mode === 'dynamic' ? connector.default_tool_config : DEFAULT_LIMITS
    return {
      maxInstances: setting?.maxInstances ?? defaults.max_instances,
      timeoutMs: setting?.timeoutMs ?? durationMs(defaults.timeout),
    }
  }

  return {
    admit(connector, tool) {
      const configured = settingOf(connector.name, tool) !== undefined
      if (configured || connector.mode === 'dynamic') return { ok: true, configured }
      return {
        ok: false,
        reason: `Not configured in the toolbox, and ${connector.name} is in strict mode. Name ${connector.name}.${tool} under toolbox.tools, or set mode: dynamic.`,
      }
    },
    offersBuiltin: (name) => (name === INSPECT ? toolbox.inspect : byName.has(name)),
    limits,
    needsApproval(tool, connector) {
      // A tool's own setting wins over its connector's; if there is only one of them, that counts.
      const own = settingFor(tool, connector)?.requireApproval
      const policy = own ?? connector?.require_approval ?? 'never'
      if (policy !== 'destructive') return policy === 'always'
      return !isHarmless(tool, connector)
    },
    isRepeatable: (tool, connector) =>
      isTrusted(connector) &&
      (tool.annotations.readOnlyHint === true || tool.annotations.idempotentHint === true),
  }
}

/** Built-ins are ours; a server's hints count only where the operator trusts them (wire: MCP, tools page). */
const isTrusted = (connector: Connector | null): boolean => connector?.trust_annotations ?? true

/** An absent hint means the worst: not read-only, destructive (MCP defaults). */
const isHarmless = (tool: RegistryTool, connector: Connector | null): boolean =>
  isTrusted(connector) &&
  (tool.annotations.readOnlyHint === true || tool.annotations.destructiveHint === false)
