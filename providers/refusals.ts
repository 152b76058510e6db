/**
 * Words of refusals of all who speak OpenAI's or Anthropic's protocol: many servers speak both, and say the same in both
 * (llama.cpp in Anthropic's: janhq/jan#8108). They come under any status and type.
 */

/**
 * The conversation is longer than the model reads.
 * - `exceed context limit`: Claudes before 4.5, when the answer is given more room than is left (docker/docker-agent#569)
 * - xAI (cline/cline#3120), DeepSeek (langchain-ai/langchainjs#10481), Kimi (MoonshotAI/kimi-code#207), MiniMax
 *   (MiniMax-AI/MiniMax-M2#119)
 * - llama.cpp, Ollama, Together, Z.AI (iamclancyliang/pi-go#37, earendil-works/pi#9805)
 * - Bedrock, GLM, Poolside and Gemini behind relays (tigy32/Tycode#15, NVIDIA-NeMo/Switchyard#314, earendil-works/pi#4943;
 *   gemini/classify.ts)
 */
export const TOO_LONG =
  /context window|(max(imum)?|available|model's) (context|prompt) (length|size)|prompt (is )?too long|exceed context limit|exceeded model token limit|tokens exceed the configured limit|input is too long|exceeds the maximum (allowed input length|number of tokens)|input token count is \d+ but/i

/**
 * The account has no money left, which no wait gets past.
 * - `credit balance`: Anthropic, as an invalid request (anthropics/claude-code#88711)
 * - `insufficient balance`: Z.AI with 429 (anthropics/claude-code#9201), MiniMax with 500 (MiniMax-AI/MiniMax-M2#62)
 * - `exceeded current quota`: Kimi with 403 or 429 (MoonshotAI/Kimi-K2#5)
 * - `credits`: xAI with 429 (continuedev/continue#10373) or 403 (Anantys-oss/koan#2412, Wei-Shaw/sub2api#4069)
 */
export const UNPAID =
  /credit balance is too low|insufficient balance|exceeded current quota|(used all available|run out of) credits/i
