/** Requests as a session of this vendor has them, and one call to the emulator. */
import { readFileSync } from 'node:fs'
import { codeAssist, gemini } from '../../../providers/gemini/index.ts'
import type { MediaPart } from '../../../src/chat/message.ts'
import type { CredentialSecret, Deployment, ModelRequest } from '../../../src/provider.ts'
import { PNG } from '../../emulators/bytes.ts'
import type { GeminiEmulator } from '../../emulators/gemini.ts'
import type { Request } from '../../emulators/gemini-rules.ts'
import { declared, eventsOf, OPTIONS, parserOf, requestOf, send } from '../exchange.ts'
import { fold, framesOf } from '../streams.ts'

export const FIXTURES = 'test/fixtures/gemini'
export const fixture = (name: string) => readFileSync(`${FIXTURES}/${name}`, 'utf8')

export const MODEL = 'gemini-3.8-flash'
export const origin = { provider: 'gemini', model: MODEL, credential_id: 'cred_1' }

/** A tool that takes a path. */
export const tool = (name: string) =>
  declared(name, { properties: { path: { type: 'string' } }, required: ['path'] })

export const requestFor = (change: Partial<ModelRequest> = {}): ModelRequest =>
  requestOf({
    model: MODEL,
    credential: { id: 'cred_1', project_id: 'acme-dev-482910' },
    options: { ...OPTIONS, dual_declarations: true },
    ...change,
  })
export const bodyOf = (change: Partial<ModelRequest> = {}) =>
  gemini.render(requestFor(change)).body as Request & Record<string, unknown>

export const SECRET: CredentialSecret = { api_key: 'a-key', access_token: 'ya29.token' }

/** One call as the engine makes it. For a refusal: the answer, and the error that `classify` makes of it. */
export async function ask(deployment: Deployment, emulator: GeminiEmulator, one: ModelRequest) {
  const base = deployment === codeAssist ? emulator.codeAssistBaseUrl : emulator.publicBaseUrl
  const answer = await send(deployment, base, SECRET, one)
  if (answer.status !== 200)
    return { failure: answer, error: deployment.classify(answer), events: [], parts: [] }
  const parser = parserOf(deployment, { ...origin, model: one.model })
  const events = eventsOf(parser, framesOf(answer.body))
  return { failure: null, error: null, events, parts: fold(events) }
}

export const IMAGE: MediaPart = { type: 'image', media_type: 'image/png', data: PNG }
