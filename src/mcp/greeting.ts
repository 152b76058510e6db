/**
 * Mends a server's answer to `initialize`: the SDK refuses a whole server for one odd member of it, and Baton needs
 * little of it.
 */
import { isRecord } from '../chat/json.ts'

/** A server that names no revision is taken to speak the first one. */
const FIRST_REVISION = '2024-11-05'

/** What Baton uses of the answer, in the form that the SDK accepts. */
export function mendGreeting(result: unknown): unknown {
  if (!isRecord(result)) return result
  const { protocolVersion, capabilities, serverInfo } = result
  const { name, version } = isRecord(serverInfo) ? serverInfo : {}
  return {
    protocolVersion: typeof protocolVersion === 'string' ? protocolVersion : FIRST_REVISION,
    capabilities: mendCapabilities(capabilities),
    serverInfo: { name: inWords(name), version: inWords(version) },
  }
}

/** A server that does not say what it can do may have tools; one that says so in any form has them. */
function mendCapabilities(capabilities: unknown): object {
  if (!isRecord(capabilities)) return { tools: {} }
  const { tools } = capabilities
  // An empty PHP array is `[]` in JSON; some servers list their tools here, or write `true` (batpred#3496).
  if (!tools) return {}
  return { tools: { listChanged: isRecord(tools) && tools.listChanged === true } }
}

const inWords = (value: unknown): string =>
  typeof value === 'string' || typeof value === 'number' ? String(value) : ''
