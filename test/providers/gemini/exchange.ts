/** Requests as a session of this vendor has them, and one call to the emulator. */

import { readFileSync } from 'node:fs'
import type { Test } from 'tap'
import { codeAssist, gemini } from '../../../providers/gemini/index.ts'
import type { MediaPart, MessageInput, ToolCallPart, ToolResultPart } from '../../../src/chat/message.ts'
import { exposedName } from '../../../src/chat/names.ts'
import type {
  CredentialSecret,
  Deployment,
  ModelRequest,
  ParseContext,
  ToolDeclaration,
} from '../../../src/provider.ts'
import { PNG } from '../../emulators/bytes.ts'
import { createGeminiEmulator, type GeminiEmulator } from '../../emulators/gemini.ts'
import type { Request } from '../../emulators/gemini-rules.ts'
import { fold, framesOf } from '../streams.ts'

export const FIXTURES = 'test/fixtures/gemini'
export const fixture = (name: string) => readFileSync(`${FIXTURES}/${name}`, 'utf8')

export const tool = (canonical_name: string): ToolDeclaration => ({
  name: exposedName(canonical_name),
  canonical_name,
  description: 'Reads a file',
  parameters: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] },
})
export const PROVENANCE = { provider: 'gemini', model: 'gemini-3.8-flash', credential_id: 'cred_1' }

export function context(
  tools: readonly ToolDeclaration[] = [tool('files.read')],
  model = 'gemini-3.8-flash',
): ParseContext {
  let made = 0
  return {
    callId: (vendorId) => `call_${vendorId ?? `own${++made}`}`,
    toolName: (exposed) => tools.find(({ name }) => name === exposed)?.canonical_name ?? exposed,
    provenance: { ...PROVENANCE, model },
  }
}

export const request = (extra: Partial<ModelRequest> = {}): ModelRequest => ({
  model: 'gemini-3.8-flash',
  instructions: 'Be short.',
  messages: [{ role: 'user', parts: [{ type: 'text', text: 'hi' }] }],
  tools: [],
  settings: {},
  session_id: 'ses_1',
  follow_up: false,
  credential: { id: 'cred_1', project_id: 'acme-dev-482910' },
  options: { system_blocks: [], headers: {}, dual_declarations: true },
  ...extra,
})
export const bodyOf = (extra: Partial<ModelRequest> = {}) =>
  gemini.render(request(extra)).body as Request & Record<string, unknown>

export const SECRET: CredentialSecret = { api_key: 'a-key', access_token: 'ya29.token' }

/** One call as the engine makes it; of a refusal, what `classify` makes of it. */
export async function ask(deployment: Deployment, emulator: GeminiEmulator, one: ModelRequest) {
  const rendered = deployment.render(one)
  const base = deployment === codeAssist ? emulator.codeAssistBaseUrl : emulator.publicBaseUrl
  const response = await fetch(`${base}${rendered.path}`, {
    method: rendered.method,
    headers: {
      'content-type': 'application/json',
      ...rendered.headers,
      ...deployment.authorize(SECRET, one.credential),
    },
    body: JSON.stringify(rendered.body),
  })
  const body = await response.text()
  const failure = { status: response.status, headers: Object.fromEntries(response.headers), body }
  if (!response.ok) return { failure, error: deployment.classify(failure), events: [], parts: [] }
  const parser = deployment.parser(context(one.tools, one.model))
  const events = [...framesOf(body).flatMap((frame) => parser.push(frame)), ...parser.end()]
  return { failure: null, error: null, events, parts: fold(events) }
}

export async function start(test: Test): Promise<GeminiEmulator> {
  const emulator = await createGeminiEmulator()
  test.teardown(() => emulator.close())
  return emulator
}

export const user = (value: string): MessageInput => ({
  role: 'user',
  parts: [{ type: 'text', text: value }],
})
export const resultOf = (
  { call_id, name }: ToolCallPart,
  extra: Partial<ToolResultPart> = {},
): ToolResultPart => ({
  type: 'tool_result',
  call_id,
  name,
  content: [{ type: 'text', text: 'some text' }],
  is_error: false,
  outcome: 'ok',
  ...extra,
})

export const IMAGE: MediaPart = { type: 'image', media_type: 'image/png', data: PNG }
