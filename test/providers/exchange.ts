/** An exchange with a vendor as the engine makes it: a session's request, its sending, and the events of its answer. */
import type { ModelEvent } from '../../src/chat/event.ts'
import type { MessageInput, Provenance, ToolCallPart, ToolResultPart } from '../../src/chat/message.ts'
import { exposedName } from '../../src/chat/names.ts'
import type {
  CredentialSecret,
  Deployment,
  DeploymentOptions,
  JsonSchema,
  ModelParser,
  ModelRequest,
  ToolDeclaration,
  UpstreamFailure,
} from '../../src/provider.ts'
import type { SseFrame } from '../../src/sse.ts'

export const OPTIONS: DeploymentOptions = {
  system_blocks: [],
  headers: {},
  dual_declarations: false,
  unstored: false,
}

export const said = (text: string): MessageInput => ({ role: 'user', parts: [{ type: 'text', text }] })

export const declared = (canonical_name: string, parameters: JsonSchema = {}): ToolDeclaration => ({
  name: exposedName(canonical_name),
  canonical_name,
  description: `Does ${canonical_name}`,
  parameters: { type: 'object', ...parameters },
})

/** The first request of a turn that says hi. `own`: fields that replace the defaults. */
export const requestOf = (own: Pick<ModelRequest, 'model'> & Partial<ModelRequest>): ModelRequest => ({
  instructions: 'Be brief.',
  messages: [said('hi')],
  tools: [],
  settings: {},
  session_id: 'ses_1',
  follow_up: false,
  credential: { id: 'cred_1' },
  options: OPTIONS,
  ...own,
})

/** A result that is some text, unless `own` says more of it. */
export const resultOf = (
  { call_id, name }: Pick<ToolCallPart, 'call_id' | 'name'>,
  own: Partial<ToolResultPart> = {},
): ToolResultPart => ({
  type: 'tool_result',
  call_id,
  name,
  content: [{ type: 'text', text: 'some text' }],
  is_error: false,
  outcome: 'ok',
  ...own,
})

/**
 * The parser's calls keep the vendor's ids as the engine does; calls without an id get `call_made1`, `call_made2`, …
 */
export function parserOf(deployment: Deployment, provenance: Provenance, headers = {}): ModelParser {
  let made = 0
  const context = {
    callId: (vendorId = `made${++made}`) => (vendorId.startsWith('call_') ? vendorId : `call_${vendorId}`),
    toolName: (exposed: string) => exposed.replace('__', '.'),
    provenance: (opaque?: string) => (opaque === undefined ? provenance : { ...provenance, opaque }),
  }
  return deployment.parser(context, headers)
}

/** The events of an answer up to its finish, as the door reads it. Throws what the parser throws. */
export function eventsOf(parser: ModelParser, frames: readonly SseFrame[]): ModelEvent[] {
  const events: ModelEvent[] = []
  for (const frame of frames) {
    events.push(...parser.push(frame))
    if (events.at(-1)?.type === 'finish') return events
  }
  return [...events, ...parser.end()]
}

/** Sends the request. Gives the vendor's answer, also if it is a failure. */
export async function send(
  deployment: Deployment,
  base: string,
  secret: CredentialSecret,
  request: ModelRequest,
): Promise<UpstreamFailure> {
  const { path, headers, body } = deployment.render(request)
  const response = await fetch(base + path, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      'user-agent': 'baton/test',
      ...headers,
      ...deployment.authorize(secret, request.credential),
    },
    body: JSON.stringify(body),
  })
  const text = await response.text()
  return { status: response.status, headers: Object.fromEntries(response.headers), body: text }
}
