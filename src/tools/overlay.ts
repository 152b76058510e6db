/**
 * A registry as one deployment's model sees it: adapted declarations in registry order, within the
 * deployment's limit, and the map that leads a called name back. Unchanged tools keep their bytes.
 */
import { BoundedMap } from '../bounded-map.ts'
import { sha256 } from '../chat/json.ts'
import type { AssistantPart, MessageInput, Part } from '../chat/message.ts'
import { exposedName } from '../chat/names.ts'
import { once } from '../chat/once.ts'
import type { Deployment, SchemaProfile, ToolDeclaration } from '../provider.ts'
import type { RegistryRow, RegistryTool } from '../store/store.ts'
import { inSlices } from '../within.ts'
import type { DeclaredTool } from './execute.ts'
import { isDeclarable } from './registry.ts'
import { type Adapted, adapt, ownNames, sentNames } from './schema/adapt.ts'

/** What one request declares, and how a called name leads back. */
export interface Overlay {
  revision: number
  tools: ToolDeclaration[]
  byExposed: ReadonlyMap<string, DeclaredTool>
  /** Enabled tools that this deployment's model does not get, and why */
  undeclared: { canonical_name: string; reason: string }[]
}

/** Rows are immutable: a change makes a new one, so a row's overlays live as long as the row. */
const overlaysOf = once((row: RegistryRow) => once((deployment: Deployment) => build(row, deployment)))
/** Most characters of JSON for one profile */
const MOST_ADAPTED = 32 << 20
/** What an adaptation takes besides its schema */
const OVERHEAD = 500
const sizeOf = (one: Adapted): number => OVERHEAD + ('schema' in one ? JSON.stringify(one.schema).length : 0)
/** One adaptation for a schema and profile, however many sessions bind it and deployments share it. */
const adaptedFor = once((_: SchemaProfile) => new BoundedMap<Adapted>(MOST_ADAPTED, sizeOf))

/** A row and deployment have one overlay: the same object each time. */
export const overlayOf = (row: RegistryRow, deployment: Deployment): Promise<Overlay> =>
  overlaysOf(row)(deployment)

/** In slices: a long list takes half a second. */
async function build(row: RegistryRow, deployment: Deployment): Promise<Overlay> {
  const limit = deployment.toolLimit ?? Number.POSITIVE_INFINITY
  const tools: ToolDeclaration[] = []
  const byExposed = new Map<string, DeclaredTool>()
  const undeclared: Overlay['undeclared'] = []
  const enabled = row.tools.filter((tool) => tool.enabled).sort((a, b) => a.order - b.order)
  await inSlices(enabled, (tool) => {
    const fit = tools.length < limit || !isDeclarable(tool) ? fitted(tool, deployment) : beyond(limit)
    const { exposed_name: name, canonical_name, description } = tool
    if ('undeclarable' in fit) {
      undeclared.push({ canonical_name, reason: fit.undeclarable })
      return
    }
    tools.push({ name, canonical_name, description, parameters: fit.schema })
    byExposed.set(name, { tool, rename: fit.rename })
  })
  return { revision: row.revision, tools, byExposed, undeclared }
}

const beyond = (limit: number): Adapted => ({
  undeclarable: `Not declared: this provider takes at most ${limit} tools, and those before it fill the list.`,
})

function fitted(tool: RegistryTool, deployment: Deployment): Adapted {
  if (!isDeclarable(tool)) {
    return { undeclarable: tool.reason ?? 'It cannot be declared.' }
  }
  const known = adaptedFor(deployment.schema)
  // Not by the definition's hash: a row may hold a placeholder for its schema, or what a build before this one made of it.
  const key = sha256(JSON.stringify(tool.parameters))
  const found = known.get(key)
  if (found) return found
  const fresh = adapt(tool.parameters, deployment.schema)
  known.put(key, fresh)
  return fresh
}

/** A model's part as histories keep it: the arguments of a call have the names that its tool's server gave. */
export const ownPart = (overlay: Overlay, part: AssistantPart): AssistantPart =>
  withNames(overlay, part, ownNames)

/** A request's messages: the arguments of their calls have the names that it declares. */
export function sentMessages(overlay: Overlay, messages: MessageInput[]): MessageInput[] {
  const sent = sentForm(overlay)
  return sent ? messages.map(sent) : messages
}

/** Null: all properties have the names that their servers gave. */
const sentForm = once((overlay: Overlay) => {
  if ([...overlay.byExposed.values()].every(({ rename }) => rename === null)) return null
  return once((message: MessageInput): MessageInput => {
    return { ...message, parts: message.parts.map((part) => withNames(overlay, part, sentNames)) }
  })
})

function withNames<P extends Part>({ byExposed }: Overlay, part: P, names: typeof ownNames): P {
  if (part.type !== 'tool_call') return part
  const rename = byExposed.get(exposedName(part.name))?.rename
  return rename ? { ...part, arguments: names(part.arguments, rename) } : part
}
