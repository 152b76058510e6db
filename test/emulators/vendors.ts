/** All emulated vendors together, and the settings that point Baton to them. */
import { type AnthropicEmulator, createAnthropicEmulator } from './anthropic.ts'
import { createGeminiEmulator, type GeminiEmulator } from './gemini.ts'
import { createOpenAiEmulator, type OpenAiEmulator } from './openai.ts'

export interface Vendors {
  openai: OpenAiEmulator
  anthropic: AnthropicEmulator
  gemini: GeminiEmulator
}

export const startVendors = async (): Promise<Vendors> => ({
  openai: await createOpenAiEmulator(),
  anthropic: await createAnthropicEmulator(),
  gemini: await createGeminiEmulator(),
})

export const rootsOf = ({ openai, anthropic, gemini }: Vendors): Record<string, string> => ({
  BATON_OPENAI_BASE_URL: openai.keyBaseUrl,
  BATON_CHATGPT_BASE_URL: openai.chatgptBaseUrl,
  BATON_ANTHROPIC_BASE_URL: anthropic.baseUrl,
  BATON_GEMINI_BASE_URL: gemini.publicBaseUrl,
  BATON_CODE_ASSIST_BASE_URL: gemini.codeAssistBaseUrl,
})

export async function closeVendors(vendors: Vendors): Promise<void> {
  await Promise.all(Object.values(vendors).map((emulator) => emulator.close()))
}
