/**
 * From canonical state to one request: overlay, edits, repair, settings. Pure but for fresh call ids;
 * the engine's step and the `/render` preview share it, so that the preview never lies.
 */
import { newId } from '../chat/ids.ts'
import { type MessageInput, type Provenance, toolCalls } from '../chat/message.ts'
import { exposedName } from '../chat/names.ts'
import { repair } from '../chat/repair.ts'
import type { ChosenCredential } from '../credentials/choose.ts'
import type { Deployment, ModelRequest, ModelSettings, ParseContext } from '../provider.ts'
import type { RegistryRow, Session } from '../store/store.ts'
import { type Overlay, sentMessages } from '../tools/overlay.ts'
import type { EngineDeps } from './deps.ts'
import { contextOf, type Run } from './run.ts'

interface Preparation {
  session: Pick<Session, 'id' | 'instructions' | 'settings'>
  provider: string
  model: string
  credential: ChosenCredential
  /** What the model is shown */
  history: readonly MessageInput[]
  /** Everything in the session, also what an edit of the context hides: call ids are unique among all of it */
  stored: readonly MessageInput[]
  registry: RegistryRow
  /** Marks of what the model refused of it */
  refused: ReadonlySet<string> | undefined
  /** This request is not its turn's first */
  followUp: boolean
}

export interface Prepared {
  deployment: Deployment
  request: ModelRequest
  overlay: Overlay
  context: ParseContext
  /** What repair left out, in words for `/render` */
  notes: string[]
}

/**
 * The request for the turn's current step. Asks for the provider's list of models without waiting: later steps have it.
 */
export async function prepareStep(run: Run): Promise<Prepared> {
  const prepared = await prepare(run.deps, {
    session: run.session,
    provider: run.provider,
    model: run.model,
    credential: run.credential,
    history: contextOf(run),
    stored: run.history,
    registry: run.registry,
    refused: run.refused,
    followUp: run.index > 0,
  })
  const { headers } = prepared.request.options
  run.deps.llm.models.ask(prepared.deployment, { ...run.credential, headers })
  return prepared
}

/** Throws invalid_request if no deployment serves the credential. */
export async function prepare(
  deps: Pick<EngineDeps, 'servedBy' | 'tools' | 'llm'>,
  from: Preparation,
): Promise<Prepared> {
  const { session, credential, provider, model } = from
  const { deployment, options } = deps.servedBy(provider, credential)
  const reported = deps.llm.models.known(deployment, credential.facts, model)
  const capabilities = deployment.capabilities(model, reported)
  const overlay = await deps.tools.overlay(from.registry, deployment)
  const head = capabilities.boundThinking
    ? JSON.stringify([session.instructions, deployment.declare(overlay.tools, options)])
    : ''
  const origin = { provider, model, credential_id: credential.facts.id }
  const { messages, prefix, notes } = repair(
    from.history,
    { ...origin, ...capabilities, refused: from.refused },
    head,
  )
  const request: ModelRequest = {
    model,
    instructions: session.instructions,
    messages: sentMessages(overlay, messages),
    tools: overlay.tools,
    settings: stepSettings(session.settings, overlay, from.followUp),
    session_id: session.id,
    follow_up: from.followUp,
    ...(reported ? { reported } : {}),
    credential: credential.facts,
    options,
  }
  const provenance = prefix === '' ? origin : { ...origin, prefix }
  return { deployment, request, overlay, context: parseContext(from, overlay, provenance), notes }
}

/**
 * A forced tool choice holds for a turn's first request only: repeated after every result, it would never let the turn
 * end. The choice may name a tool as models see it, too. The adapters leave out a tool that is not declared now, and
 * say so in their notes.
 */
function stepSettings(settings: ModelSettings, { byExposed }: Overlay, followUp: boolean): ModelSettings {
  const choice = settings.tool_choice
  if (choice === undefined || choice === 'none') return settings
  if (followUp) return { ...settings, tool_choice: 'auto' }
  const declared = typeof choice === 'object' ? byExposed.get(exposedName(choice.name)) : undefined
  return declared ? { ...settings, tool_choice: { name: declared.tool.canonical_name } } : settings
}

function parseContext(
  { history, stored }: Pick<Preparation, 'history' | 'stored'>,
  overlay: Overlay,
  provenance: Provenance,
): ParseContext {
  // Collected at the first call: most answers make none, and histories are long.
  let used: Set<string> | undefined
  return {
    callId(vendorId) {
      used ??= new Set([...stored, ...history].flatMap(toolCalls).map((call) => call.call_id))
      const id = canonicalCallId(vendorId)
      const fresh = id === null || used.has(id) ? newId('call') : id
      used.add(fresh)
      return fresh
    },
    toolName(exposed) {
      const found = readings(exposed).map((name) => overlay.byExposed.get(exposedName(name)))
      return found.find(Boolean)?.tool.canonical_name ?? invented(exposed)
    },
    provenance: (opaque) => (opaque === undefined ? provenance : { ...provenance, opaque }),
  }
}

/**
 * What a name may mean, the likeliest first. Models may write a canonical name for the exposed one. Now and then models
 * of every vendor put a namespace before it that nobody declared: `functions.` (tontinton/maki#505), `default_api:`, a
 * word of the instructions (google-gemini/cookbook#1374).
 */
const readings = (name: string): string[] => [
  name,
  name.replace(/^[^.:]*[.:]/, ''),
  name.replace(/^.*[.:]/, ''),
]

/** A name that the model made up, within what a message may hold (routes/schemas.ts). */
const invented = (name: string): string => name.replaceAll('\0', '_').slice(0, 512)

/** The vendor's own id where it is legal everywhere, so that a request can be found in the vendor's records. */
function canonicalCallId(vendorId: string | undefined): string | null {
  if (vendorId === undefined || !/^[A-Za-z0-9_-]{1,59}$/.test(vendorId)) return null
  return vendorId.startsWith('call_') ? vendorId : `call_${vendorId}`
}
