/** Hand-written requests, and the emulated Anthropic API to which they are sent. */

import type { Test } from 'tap'
import { type AnthropicEmulator, createAnthropicEmulator } from './anthropic.ts'
import { PNG } from './bytes.ts'

export const KEY = 'sk-ant-api03-acme-1'
export const TOKEN = 'sk-ant-oat01-acme-1'
export const OAUTH = { 'anthropic-beta': 'oauth-2025-04-20' }
export const BINDING = { 'anthropic-beta': 'thinking-binding-controls-2026-08-01' }
export const VERSION = { 'anthropic-version': '2023-06-01' }

export type Body = Record<string, unknown>

export const emulate = async (t: Test): Promise<AnthropicEmulator> => {
  const emulator = await createAnthropicEmulator()
  t.teardown(() => emulator.close())
  return emulator
}

export const weather = {
  name: 'get_weather',
  description: 'Weather of a place',
  input_schema: { type: 'object' as const, properties: { place: { type: 'string' } }, required: ['place'] },
}
export const user = (content: unknown) => ({ role: 'user', content })
export const assistant = (content: unknown) => ({ role: 'assistant', content })
export const base = (patch: Body = {}): Body => ({
  model: 'claude-sonnet-4-6',
  max_tokens: 1000,
  messages: [user('hello')],
  ...patch,
})

/** Sends a body as it is. Gives the answer's status and JSON; `words` is its error message. */
export async function ask(
  { url }: AnthropicEmulator,
  body: Body | string,
  headers: Record<string, string> = {},
  path = '/v1/messages',
): Promise<{ status: number; words: string; json: Body }> {
  const response = await fetch(url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-api-key': KEY, ...VERSION, ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  })
  const json = (await response.json()) as Body
  const { message = '' } = (json.error ?? {}) as { message?: string }
  return { status: response.status, words: message, json }
}

export const png = { type: 'base64', media_type: 'image/png', data: PNG }
export const mark = { cache_control: { type: 'ephemeral' } }
export const drop = { block_binding: { prefix_mismatch_behavior: 'drop_block' } }

/** A body, and the words with which it is refused. Each case becomes a test of its own. */
export type Refused = [name: string, body: Body, words: RegExp, headers?: Record<string, string>]

export async function refuses(
  t: Test,
  emulator: AnthropicEmulator,
  cases: readonly Refused[],
): Promise<void> {
  for (const [name, body, words, headers] of cases) {
    await t.test(name, async (t) => {
      const answer = await ask(emulator, body, headers)
      t.match(answer, {
        status: 400,
        words,
        json: { type: 'error', error: { type: 'invalid_request_error' } },
      })
    })
  }
}
