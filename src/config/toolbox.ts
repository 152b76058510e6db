/** The toolbox of the YAML file: its own rules beyond the schema, and its defaults (api.md section 1). */
import { durationMs } from '../duration.ts'
import type { Problem } from '../validation.ts'
import type { McpSetting, Toolbox, ToolSetting } from './config.ts'
import { shapeProblems } from './connector-shape.ts'
import type { FileContent } from './file.ts'
import { holdsPlaceholder, isPlaceholder, UNFILLED } from './readers.ts'

type ToolboxFile = NonNullable<FileContent['toolbox']>
type McpFile = NonNullable<ToolboxFile['mcps']>[number]
type ToolFile = NonNullable<ToolboxFile['tools']>[number]

/**
 * Problems that a schema cannot say. Values that did not pass the schema were taken out, so a required field may be
 * missing.
 */
export function toolboxProblems(toolbox: ToolboxFile): Problem[] {
  const mcps = toolbox.mcps ?? []
  const tools = toolbox.tools ?? []
  return [
    ...repeated(tools, 'toolbox.tools'),
    ...repeated(mcps, 'toolbox.mcps'),
    ...mcps.flatMap((mcp, i) => mcpProblems(mcp, `toolbox.mcps[${i}]`)),
  ]
}

function repeated(list: readonly { name?: string }[], path: string): Problem[] {
  const names = list.map(({ name }) => name)
  return names.flatMap((name, i) =>
    name !== undefined && names.indexOf(name) < i
      ? [{ path: `${path}[${i}].name`, problem: `'${name}' is configured twice`, remedy: 'Keep one of them' }]
      : [],
  )
}

function mcpProblems(mcp: McpFile, path: string): Problem[] {
  const problems: Problem[] = []
  const say = (field: string, problem: string, remedy = '') =>
    problems.push({ path: `${path}.${field}`, problem, remedy })
  if (mcp.mode === 'dynamic' && !mcp.default_tool_config) {
    say(
      'default_tool_config',
      `MCP server '${mcp.name ?? '?'}' is configured with mode='dynamic' but missing required field 'default_tool_config'`,
      "Add default_tool_config: {max_instances: 5, timeout: PT30S}, or set mode: 'strict'",
    )
  }
  for (const found of shapeProblems(mcp)) say(found.path, found.problem, found.remedy)
  return [...problems, ...unfilled(mcp).map((field) => unfilledAt(`${path}.${field}`))]
}

/** The problem of a value in which a placeholder stands. */
export function unfilledAt(path: string): Problem {
  const steps = path.toUpperCase().split(/[.[\]]+/)
  const variable = `BATON__${steps.join('__').replaceAll('-', '_')}`
  return { path, problem: UNFILLED, remedy: `Set ${variable} to the value itself` }
}

/** The fields of a server in which a placeholder stands, as other MCP clients fill it in (spences10/my-pi#149). */
function unfilled({ url = '', headers = {}, env = {} }: McpFile): string[] {
  const among = (field: string, pairs: object, test: (text: string) => boolean) =>
    Object.entries(pairs).flatMap(([name, value]) => (test(String(value)) ? [`${field}.${name}`] : []))
  return [
    ...(holdsPlaceholder(url) ? ['url'] : []),
    ...among('headers', headers, holdsPlaceholder),
    // Among other text it may be for the program itself.
    ...among('env', env, isPlaceholder),
  ]
}

/** The toolbox with its defaults; an absent one limits nothing. */
export function toolboxOf(file: ToolboxFile | undefined): Toolbox {
  return {
    maxConcurrent: file ? (file.max_concurrent ?? 10) : Number.POSITIVE_INFINITY,
    tools: (file?.tools ?? []).map(toolSetting),
    mcps: (file?.mcps ?? []).map(mcpSetting),
    inspect: file?.inspect ?? true,
  }
}

const toolSetting = ({ name, max_instances, timeout, require_approval }: ToolFile): ToolSetting => ({
  name,
  maxInstances: max_instances,
  timeoutMs: timeout === undefined ? undefined : durationMs(timeout),
  requireApproval: require_approval,
})

function mcpSetting(file: McpFile): McpSetting {
  const { prompts: _, args, env, headers, default_tool_config: limits, ...rest } = file
  return {
    ...rest,
    ...(args && { args: args.map(String) }),
    ...(env && { env: textValues(env) }),
    ...(headers && { headers: textValues(headers) }),
    ...(limits && { default_tool_config: { ...limits, ...(limits.timeout && inSeconds(limits.timeout)) } }),
    bind: file.bind ?? 'auto',
    trust_annotations: file.trust_annotations ?? true,
  }
}

/** Every timeout is written in one form, however the file has it: a connector whose text differs counts as changed. */
const inSeconds = (timeout: string) => ({ timeout: `PT${durationMs(timeout) / 1000}S` })

/** Pairs as texts: YAML reads 12345 and true as something else. */
export const textValues = (pairs: Record<string, string | number | boolean> = {}): Record<string, string> =>
  Object.fromEntries(Object.entries(pairs).map(([key, value]) => [key, String(value)]))
