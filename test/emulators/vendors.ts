/** All emulated vendors together, and the settings that point Baton to them. */
import type { Base } from '../../src/config/settings.ts'
import { type AnthropicEmulator, createAnthropicEmulator } from './anthropic.ts'
import { createGeminiEmulator, type GeminiEmulator } from './gemini.ts'
import { createOpenAiEmulator, type OpenAiEmulator } from './openai.ts'

export interface Vendors {
  openai: OpenAiEmulator
  anthropic: AnthropicEmulator
  gemini: GeminiEmulator
}

/** On free ports, or on these. */
export const startVendors = async (ports?: Record<keyof Vendors, number>): Promise<Vendors> => ({
  openai: await createOpenAiEmulator(ports?.openai),
  anthropic: await createAnthropicEmulator(ports?.anthropic),
  gemini: await createGeminiEmulator(ports?.gemini),
})

/** Every upstream root: a gateway in a test must not call a real service. */
export type Roots = Record<`BATON_${Uppercase<Base>}_BASE_URL`, string>

export const rootsOf = ({ openai, anthropic, gemini }: Vendors): Roots => ({
  BATON_OPENAI_BASE_URL: openai.keyBaseUrl,
  BATON_CHATGPT_BASE_URL: openai.chatgptBaseUrl,
  BATON_ANTHROPIC_BASE_URL: anthropic.url,
  BATON_GEMINI_BASE_URL: gemini.publicBaseUrl,
  BATON_CODE_ASSIST_BASE_URL: gemini.codeAssistBaseUrl,
})

export async function closeVendors(vendors: Vendors): Promise<void> {
  await Promise.all(Object.values(vendors).map((emulator) => emulator.close()))
}
