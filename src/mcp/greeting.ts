/**
 * Repairs what a server says about itself, as it answers `initialize` or the probe: the SDK refuses a whole server for
 * one odd member of it, and Baton needs little of it.
 */
import { isRecord } from '../chat/json.ts'

/** A server that names no revision is taken to speak the first one. */
const FIRST_REVISION = '2024-11-05'

/** What Baton uses of the answer, in the form that the SDK accepts. */
export function repairGreeting(result: unknown): unknown {
  if (!isRecord(result)) return result
  const { protocolVersion, capabilities, serverInfo } = result
  const { name, version } = isRecord(serverInfo) ? serverInfo : {}
  return {
    protocolVersion: typeof protocolVersion === 'string' ? protocolVersion : FIRST_REVISION,
    capabilities: repairCapabilities(capabilities),
    serverInfo: { name: inWords(name), version: inWords(version) },
  }
}

/** Where a server names itself in `_meta` (MCP 2026-07-28) */
const SERVER_INFO = 'io.modelcontextprotocol/serverInfo'
/** Most characters of a revision's name, and of what a server says about itself */
const LONGEST = 1_000

/**
 * What Baton uses of the answer to `server/discover`. It is remembered for each server for a day, and the rest of it may
 * be megabytes.
 */
export function repairDiscovery(result: unknown): unknown {
  if (!isRecord(result)) return result
  const { resultType, supportedVersions: versions, capabilities, _meta } = result
  // Drafts of the revision had it beside the rest, as `initialize` does.
  const info = (isRecord(_meta) && _meta[SERVER_INFO]) || result.serverInfo
  const { name, version } = isRecord(info) ? info : {}
  const isShort = (text: unknown) => typeof text !== 'string' || text.length <= LONGEST
  return {
    resultType,
    supportedVersions: Array.isArray(versions) ? versions.filter(isShort).slice(0, 100) : versions,
    capabilities: isRecord(capabilities) ? repairCapabilities(capabilities) : capabilities,
    ttlMs: 0,
    cacheScope: 'private',
    _meta: { [SERVER_INFO]: { name: inWords(name), version: inWords(version) } },
  }
}

/**
 * A server that does not say what it can do may have tools (one SDK says `{}` for all its servers:
 * openJiuwen-ai/agent-protocol#2); one that says so in any form has them.
 */
function repairCapabilities(capabilities: unknown): object {
  if (!isRecord(capabilities) || Object.keys(capabilities).length === 0) return { tools: {} }
  const { tools } = capabilities
  // An empty PHP array is `[]` in JSON; some servers list their tools here, or write `true` (batpred#3496).
  if (!tools) return {}
  return { tools: { listChanged: isRecord(tools) && tools.listChanged === true } }
}

const inWords = (value: unknown): string =>
  typeof value === 'string' || typeof value === 'number' ? String(value).slice(0, LONGEST) : ''
