/**
 * Words for a conversation that is longer than the model reads, of all who speak OpenAI's or Anthropic's protocol: many
 * servers speak both, and say the same in both (llama.cpp in Anthropic's: janhq/jan#8108).
 */

/**
 * - `exceed context limit`: Claudes before 4.5, when the answer is given more room than is left (docker/docker-agent#569)
 * - xAI (cline/cline#3120), DeepSeek (langchain-ai/langchainjs#10481), Kimi (MoonshotAI/kimi-code#207), MiniMax
 *   (MiniMax-AI/MiniMax-M2#119)
 * - llama.cpp, Ollama, Together, Z.AI (iamclancyliang/pi-go#37, earendil-works/pi#9805)
 * - Bedrock, GLM, Poolside and Gemini behind relays (tigy32/Tycode#15, NVIDIA-NeMo/Switchyard#314, earendil-works/pi#4943;
 *   gemini/classify.ts)
 */
export const TOO_LONG =
  /context window|(max(imum)?|available|model's) (context|prompt) (length|size)|prompt (is )?too long|exceed context limit|exceeded model token limit|tokens exceed the configured limit|input is too long|exceeds the maximum (allowed input length|number of tokens)/i
