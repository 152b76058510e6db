/** Requests as a session of this vendor has them, and the events of its answers. */
import { readFileSync } from 'node:fs'
import { chatgpt } from '../../../providers/openai/index.ts'
import type { ModelEvent } from '../../../src/chat/event.ts'
import type { MessageInput, Provenance } from '../../../src/chat/message.ts'
import { repair } from '../../../src/chat/repair.ts'
import type { Deployment, ModelRequest } from '../../../src/provider.ts'
import type { SseFrame } from '../../../src/sse.ts'
import { declared, eventsOf, parserOf, requestOf } from '../exchange.ts'

export const FIXTURES = 'test/fixtures/openai'
export const fixture = (name: string) => readFileSync(`${FIXTURES}/${name}`, 'utf8')

export const MODEL = 'gpt-6-sol'
export const origin: Provenance = { provider: 'openai', model: MODEL, credential_id: 'cred_1' }

export const parse = (frames: readonly SseFrame[]): ModelEvent[] =>
  eventsOf(parserOf(chatgpt, origin), frames)

export const TOOLS = ['files.read', 'files.write'].map((name) => declared(name, { properties: {} }))

export const requestFor = (change: Partial<ModelRequest> = {}): ModelRequest =>
  requestOf({ model: MODEL, credential: { id: 'cred_1', account_id: 'acc-1' }, ...change })

/** The history as the engine hands it to this deployment. */
export function repaired(
  deployment: Deployment,
  history: readonly MessageInput[],
  model = MODEL,
  credential_id = 'cred_1',
) {
  const target = { provider: 'openai', model, credential_id, ...deployment.capabilities(model) }
  return repair(history, target).messages
}
