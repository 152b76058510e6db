/**
 * Words for an account that has no money left, which no wait gets past, of all who speak OpenAI's or Anthropic's protocol:
 * they come under any status and type.
 *
 * - `credit balance`: Anthropic, as an invalid request (anthropics/claude-code#88711)
 * - `insufficient balance`: Z.AI with 429 (anthropics/claude-code#9201), MiniMax with 500 (MiniMax-AI/MiniMax-M2#62)
 * - `exceeded current quota`: Kimi with 403 or 429 (MoonshotAI/Kimi-K2#5)
 * - `credits`: xAI with 429 (continuedev/continue#10373) or 403 (Anantys-oss/koan#2412, Wei-Shaw/sub2api#4069)
 */
export const UNPAID =
  /credit balance is too low|insufficient balance|exceeded current quota|(used all available|run out of) credits/i
