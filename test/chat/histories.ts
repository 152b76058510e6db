/** Arbitrary histories, of any vendor's making. */

import fc from 'fast-check'
import type {
  MediaKind,
  MessageInput,
  Part,
  Provenance,
  ToolCallPart,
  ToolResultPart,
} from '../../src/chat/message.ts'
import type { RepairTarget } from '../../src/chat/repair.ts'
import { PDF, PNG } from '../emulators/bytes.ts'

export const RUNS = { seed: 1, numRuns: 300 }

export const PROVIDERS = ['openai', 'anthropic', 'gemini'] as const
export const KINDS: readonly MediaKind[] = ['image', 'audio', 'file']

/** A target that binds reasoning to its prefix and takes no media. */
export const BOUND: RepairTarget = {
  provider: 'anthropic',
  model: 'm1',
  credential_id: null,
  boundThinking: true,
  takesMedia: () => false,
  systemMessages: true,
}

const provenance: fc.Arbitrary<Provenance> = fc.record(
  {
    provider: fc.constantFrom(...PROVIDERS),
    model: fc.constantFrom('m1', 'm2'),
    credential_id: fc.constantFrom('cred_a', null),
    opaque: fc.constantFrom('tok1', 'tok2'),
    prefix: fc.constantFrom('0'.repeat(64), 'ff'),
  },
  { requiredKeys: ['provider', 'model', 'credential_id'] },
) as fc.Arbitrary<Provenance>

// Few ids, so that histories repeat them, lose results and have results without a call.
const callId = fc.constantFrom('call_1', 'call_2', 'call_3', 'call_1_2', 'a|b/ü', 'x'.repeat(90))
const toolName = fc.constantFrom('srv.read', 'srv.写', 'built_in', `srv.${'n'.repeat(80)}`, 'srv.a.b')
const words = fc.constantFrom('', ' ', '\u200b\u0085', 'hello', 'π ≠ 3', 'two\nlines')
const media = fc.record({
  type: fc.constantFrom(...KINDS),
  media_type: fc.constantFrom('image/png', 'audio/wav', 'application/pdf'),
  data: fc.constantFrom('AAAA', PNG, PDF),
})
export const text = fc.record({ type: fc.constant('text' as const), text: words })
const result: fc.Arbitrary<ToolResultPart> = fc.record({
  type: fc.constant('tool_result' as const),
  call_id: callId,
  name: toolName,
  content: fc.array(fc.oneof(text, media), { maxLength: 3 }),
  is_error: fc.boolean(),
  outcome: fc.constantFrom('ok' as const, 'error' as const),
})
export const call: fc.Arbitrary<ToolCallPart> = fc
  .record({
    call_id: callId,
    name: toolName,
    arguments: fc.dictionary(fc.constantFrom('a', 'prefix'), fc.integer(), { maxKeys: 2 }),
    provenance: fc.option(provenance, { nil: undefined }),
  })
  .map(({ provenance: from, ...rest }) => ({
    type: 'tool_call' as const,
    ...rest,
    ...(from ? { provenance: from } : {}),
  }))
export const reasoning = fc.record({ type: fc.constant('reasoning' as const), text: words, provenance })
export const signedText = fc.record({ type: fc.constant('text' as const), text: words, provenance })
const notice = fc.record({ type: fc.constant('notice' as const), text: words })
const anyPart: fc.Arbitrary<Part> = fc.oneof(text, signedText, reasoning, call, result, media, notice)
export const message: fc.Arbitrary<MessageInput> = fc.record({
  role: fc.constantFrom('user' as const, 'assistant' as const, 'tool' as const, 'system' as const),
  parts: fc.array(anyPart, { maxLength: 5 }),
})
export const history = fc.array(message, { maxLength: 10 })
