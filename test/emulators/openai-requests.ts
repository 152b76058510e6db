/** Hand-written requests, and the emulated services to which they are sent. */
import type { Test } from 'tap'
import { createOpenAiEmulator, type OpenAiEmulator } from './openai.ts'

export type Body = Record<string, unknown>

export async function emulate(t: Test): Promise<OpenAiEmulator> {
  const emulator = await createOpenAiEmulator()
  t.teardown(() => emulator.close())
  return emulator
}

export const LOGIN = {
  authorization: 'Bearer login-token',
  'chatgpt-account-id': 'acc-1',
  originator: 'baton',
  'user-agent': 'baton/test',
}
export const user = (words: string) => ({
  type: 'message',
  role: 'user',
  content: [{ type: 'input_text', text: words }],
})
export const tool = (name = 'files__read', parameters: unknown = { type: 'object', properties: {} }) => ({
  type: 'function',
  name,
  description: 'Reads',
  strict: false,
  parameters,
})
export const PUBLIC: Body = { model: 'gpt-5.6-sol', input: [user('hi')], stream: true, store: false }
export const CHATGPT: Body = { ...PUBLIC, instructions: 'Be brief.' }

function post(url: string, headers: Record<string, string>, body: unknown) {
  return fetch(`${url}/responses`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  })
}
export const onKey = (emulator: OpenAiEmulator, body: unknown) =>
  post(emulator.keyBaseUrl, { authorization: 'Bearer sk-test' }, body)
export const onLogin = (emulator: OpenAiEmulator, body: unknown, headers: Record<string, string> = {}) =>
  post(emulator.chatgptBaseUrl, { ...LOGIN, ...headers }, body)
