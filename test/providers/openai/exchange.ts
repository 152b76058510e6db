/** Requests as a session of this vendor has them, and the parser of their answers. */
import { readFileSync } from 'node:fs'
import { chatgpt } from '../../../providers/openai/index.ts'
import type { ModelEvent } from '../../../src/chat/event.ts'
import type { MessageInput, Provenance } from '../../../src/chat/message.ts'
import { exposedName } from '../../../src/chat/names.ts'
import { repair } from '../../../src/chat/repair.ts'
import type { Deployment, ModelRequest, ParseContext, ToolDeclaration } from '../../../src/provider.ts'
import type { SseFrame } from '../../../src/sse.ts'

export const FIXTURES = 'test/fixtures/openai'
export const fixture = (name: string) => readFileSync(`${FIXTURES}/${name}`, 'utf8')

export const MODEL = 'gpt-6-sol'
export const origin: Provenance = { provider: 'openai', model: MODEL, credential_id: 'cred_1' }

export function newParser(deployment: Deployment = chatgpt, provenance = origin, headers = {}) {
  let made = 0
  const context: ParseContext = {
    callId: (vendorId) => vendorId ?? `call_made${++made}`,
    toolName: (exposed) => exposed.replace('__', '.'),
    provenance,
  }
  return deployment.parser(context, headers)
}

export function parse(frames: readonly SseFrame[]): ModelEvent[] {
  const parser = newParser()
  return [...frames.flatMap((frame) => parser.push(frame)), ...parser.end()]
}

const declared = (canonical: string): ToolDeclaration => ({
  name: exposedName(canonical),
  canonical_name: canonical,
  description: `Does ${canonical}`,
  parameters: { type: 'object', properties: {} },
})
export const TOOLS = [declared('files.read'), declared('files.write')]

export function requestFor(change: Partial<ModelRequest> = {}): ModelRequest {
  return {
    model: MODEL,
    instructions: 'Be brief.',
    messages: [{ role: 'user', parts: [{ type: 'text', text: 'hi' }] }],
    tools: [],
    settings: {},
    session_id: 'ses_1',
    follow_up: false,
    credential: { id: 'cred_1', account_id: 'acc-1' },
    options: { system_blocks: [], headers: {}, dual_declarations: false },
    ...change,
  }
}

/** The history as the engine would hand it to this deployment. */
export function repaired(
  deployment: Deployment,
  history: readonly MessageInput[],
  model = MODEL,
  credential_id = 'cred_1',
) {
  const target = { provider: 'openai', model, credential_id, ...deployment.capabilities(model) }
  return repair(history, target).messages
}
