/** Hand-written requests, and the emulated Gemini to which they are sent. */
import type { Content, FunctionDeclaration } from '@google/genai'
import type { Test } from 'tap'
import { createGeminiEmulator, type GeminiEmulator } from './gemini.ts'

export async function emulate(t: Test): Promise<GeminiEmulator> {
  const emulator = await createGeminiEmulator()
  t.teardown(() => emulator.close())
  return emulator
}

export const READ: FunctionDeclaration = {
  name: 'files__read',
  description: 'Reads a file',
  parametersJsonSchema: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] },
}
export const user = (value: string): Content => ({ role: 'user', parts: [{ text: value }] })
export const hi = { contents: [user('hi')] }
export const declare = (...list: object[]) => ({ ...hi, tools: [{ functionDeclarations: list }] })

export const post = (
  url: string,
  body: unknown,
  headers: Record<string, string> = { 'x-goog-api-key': 'a-key' },
) =>
  fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  })

export interface Failed {
  error: { code: number; message: string; status: string; details?: { reason?: string }[] }
}

/** Name of the case, the body, the words of the refusal, and the model (3.8-flash by default). */
export type Refused = readonly [name: string, body: unknown, words: RegExp, model?: string]

export async function refuses(
  t: Test,
  { publicBaseUrl }: GeminiEmulator,
  cases: readonly Refused[],
): Promise<void> {
  for (const [name, body, words, model = 'gemini-3.8-flash'] of cases) {
    const refused = await post(`${publicBaseUrl}/models/${model}:streamGenerateContent?alt=sse`, body)
    const { error } = (await refused.json()) as Failed
    t.match(
      { http: refused.status, ...error },
      { http: 400, code: 400, status: 'INVALID_ARGUMENT', message: words },
      name,
    )
  }
}
