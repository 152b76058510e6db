/**
 * Words of refusals of all who speak OpenAI's or Anthropic's protocol: many servers speak both, and say the same in both
 * (llama.cpp in Anthropic's: janhq/jan#8108).
 */

/** Whether a message is in any of these words. */
export const isAmong = (patterns: readonly RegExp[]) => (message: string) =>
  patterns.some((words) => words.test(message))

/** The conversation is longer than the model reads. */
export const isTooLong = isAmong([
  // OpenAI, and MiniMax (MiniMax-AI/MiniMax-M2#119)
  /context window/i,
  // DeepSeek (langchain-ai/langchainjs#10481), xAI (cline/cline#3120), llama.cpp, Ollama, Together, Z.AI
  // (iamclancyliang/pi-go#37, earendil-works/pi#9805)
  /(max(imum)?|available|model's) (context|prompt) (length|size)/i,
  /prompt (is )?too long/i,
  // Claudes before 4.5, when the answer is given more room than is left (docker/docker-agent#569)
  /exceed context limit/i,
  // Kimi (MoonshotAI/kimi-code#207)
  /exceeded model token limit/i,
  /tokens exceed the configured limit/i,
  // Bedrock, GLM and Poolside behind relays (tigy32/Tycode#15, NVIDIA-NeMo/Switchyard#314, earendil-works/pi#4943)
  /input is too long/i,
  /exceeds the maximum allowed input length/i,
  // SGLang (sgl-project/sglang#4048)
  /tokens\) exceeds the maximum allowed length/i,
  // vLLM's Responses API, and vLLM of prompts with media (thu-coai/Glyph#9)
  /exceeds the max_model_len/i,
  /longer than the maximum model length/i,
  // LM Studio (lmstudio-ai/lmstudio-bug-tracker#2205, #237, anomalyco/opencode#11141)
  /tokens to keep from the initial prompt/i,
  /trying to keep the first \d+ tokens/i,
  /n_keep \(\d+\) >= n_ctx/i,
  // Z.AI (zeroclaw-labs/zeroclaw#4124)
  /prompt exceeds max length/i,
  // Qwen (QwenLM/qwen-code#98)
  /range of input length should be/i,
  // GitHub Copilot behind relays (ericc-ch/copilot-api#65)
  /prompt token count of \d+ exceeds/i,
  // Gemini behind relays (gemini/classify.ts)
  /exceeds the maximum number of tokens/i,
  /input token count is \d+ but/i,
])

/** The account has no money left, which no wait gets past. It is said under any status and type. */
export const isUnpaid = isAmong([
  // Anthropic, as an invalid request (anthropics/claude-code#88711)
  /credit balance is too low/i,
  // Z.AI with 429 (anthropics/claude-code#9201), MiniMax with 500 (MiniMax-AI/MiniMax-M2#62)
  /insufficient balance/i,
  // Kimi with 403 or 429 (MoonshotAI/Kimi-K2#5)
  /exceeded current quota/i,
  // xAI with 429 (continuedev/continue#10373) or 403 (Anantys-oss/koan#2412, Wei-Shaw/sub2api#4069)
  /(used all available|run out of) credits/i,
])
