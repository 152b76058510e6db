/** A scene as the chunks of a Gemini answer (wire/gemini.md 6), before any envelope or framing. */
import type { Traits } from './gemini-models.ts'
import { type Signatures, signedPart } from './gemini-rules.ts'
import { pause } from './http.ts'
import type { Json } from './json.ts'
import { type Answer, pieces, type SceneItem } from './scene.ts'

interface Setting {
  model: string
  traits: Traits
  signatures: Signatures
  /** Tools that the model may call; in mode NONE there are none */
  callable: readonly string[]
  /** The request asks for summaries of thoughts */
  thoughts: boolean
  promptTokens: number
  /** Number of the answer; ids are made from it */
  serial: number
  /** Called when the model calls a tool that it may not call */
  onUnexpected(tool: string): void
}

/** A chunk, or something to wait for before the next one. The last chunk carries the finish reason. */
export type Step = { chunk: Json } | { wait: () => Promise<unknown> }

export function chunksOf(answer: Answer, setting: Setting): Step[] {
  if (answer.finish === 'refusal' && answer.items.length === 0) return [{ chunk: blocked(setting) }]
  const steps: Step[] = []
  const say = (parts: Json[]) =>
    steps.push({ chunk: { ...candidate({ content: { role: 'model', parts } }), ...meta(setting) } })
  let calls: Call[] = []
  let refused: Json | null = null
  const flush = () => {
    refused ??= refusedCalls(calls, setting)
    if (calls.length > 0 && !refused) say(callParts(calls, setting))
    calls = []
  }
  for (const item of answer.items) {
    if (item.type === 'call') calls.push(item)
    else flush()
    if (item.type === 'wait') steps.push({ wait: () => item.until })
    if (item.type === 'reasoning' && setting.thoughts) {
      for (const text of item.parts) say([{ text, thought: true }])
    }
    if (item.type === 'text') {
      pieces(item.text, answer.pace?.deltas).forEach((text, i) => {
        if (i > 0 && answer.pace) steps.push({ wait: pause(answer.pace.ms) })
        say([{ text }])
      })
    }
  }
  flush()
  const end = refused ?? { content: { role: 'model', parts: [tail(answer, setting)] }, ...reasonOf(answer) }
  steps.push({ chunk: { ...candidate(end), ...meta(setting, usageOf(answer, setting)) } })
  return steps
}

type Call = Extract<SceneItem, { type: 'call' }>

const candidate = (fields: Json): Json => ({ candidates: [{ ...fields, index: 0 }] })

const meta = ({ model, promptTokens, serial }: Setting, usage: Json = {}): Json => ({
  usageMetadata: { promptTokenCount: promptTokens, totalTokenCount: promptTokens, ...usage },
  modelVersion: model,
  responseId: `answer-${serial}`,
})

const reasonOf = ({ finish }: Answer): Json => {
  if (finish === 'length') return { finishReason: 'MAX_TOKENS' }
  return { finishReason: finish === 'refusal' ? 'SAFETY' : 'STOP' }
}

/** A blocked prompt has no candidate at all (6.4). */
const blocked = (setting: Setting): Json => ({
  promptFeedback: { blockReason: 'PROHIBITED_CONTENT', blockReasonMessage: 'The prompt is blocked.' },
  ...meta(setting),
})

/** Only the first of parallel calls is signed, and only newer models give ids (4.4, 4.5). */
function callParts(calls: readonly Call[], { traits, model, signatures, serial }: Setting): Json[] {
  return calls.map(({ name, arguments: args }, i) => {
    const id = traits.signed ? { id: `fc${serial}x${i + 1}` } : {}
    // A call without arguments has no `args` at all (4.2).
    const given = typeof args === 'string' || Object.keys(args).length === 0 ? {} : { args }
    const part = { functionCall: { name, ...given, ...id } }
    const signs = traits.signed && i === 0
    return signs ? { ...part, thoughtSignature: signatures.issue(model, signedPart(part)) } : part
  })
}

/** Broken arguments and forbidden tools make no call, but a finish reason of their own (6.4). */
function refusedCalls(calls: readonly Call[], setting: Setting): Json | null {
  const stranger = calls.find(({ name }) => !setting.callable.includes(name))
  if (stranger) {
    setting.onUnexpected(stranger.name)
    return {
      content: { role: 'model', parts: callParts(calls, setting) },
      finishReason: 'UNEXPECTED_TOOL_CALL',
      finishMessage: `Unexpected tool call: Model tried to call an undeclared function: ${stranger.name}`,
    }
  }
  const broken = calls.find(({ arguments: args }) => typeof args === 'string')
  if (!broken) return null
  return {
    finishReason: 'MALFORMED_FUNCTION_CALL',
    finishMessage: `Malformed function call: print(default_api.${broken.name}(${broken.arguments}`,
  }
}

/** The last chunk's empty text. It carries the signature of an answer without a call (4.4). */
function tail({ items }: Answer, { traits, model, signatures }: Setting): Json {
  const isSigned = traits.signed && !items.some(({ type }) => type === 'call')
  const part = { text: '' }
  return isSigned ? { ...part, thoughtSignature: signatures.issue(model, signedPart(part)) } : part
}

function usageOf({ items, usage = {} }: Answer, { promptTokens }: Setting): Json {
  const prompt = usage.input_tokens ?? promptTokens
  const thoughts = usage.reasoning_tokens ?? (items.some(({ type }) => type === 'reasoning') ? 16 : 0)
  const output = usage.output_tokens ?? thoughts + Math.ceil(JSON.stringify(items).length / 4)
  const counts = {
    promptTokenCount: prompt,
    cachedContentTokenCount: usage.cached_tokens ?? 0,
    candidatesTokenCount: output - thoughts,
    thoughtsTokenCount: thoughts,
    totalTokenCount: prompt + output,
  }
  // Zero counts are left out (6.3).
  return Object.fromEntries(Object.entries(counts).filter(([, tokens]) => tokens > 0))
}

/**
 * A stream's chunks as the one answer of `generateContent`. Texts of the same kind become one part; a signed text stays
 * apart.
 */
export function mergeChunks(chunks: readonly Json[]): Json {
  const end = chunks.at(-1) ?? {}
  if (end.candidates === undefined) return end
  const parts: Json[] = []
  let last: Json = {}
  for (const chunk of chunks) {
    const [first = {}] = (chunk.candidates ?? []) as Json[]
    last = first
    for (const part of ((first.content as Json | undefined)?.parts ?? []) as Json[]) {
      const previous = parts.at(-1)
      const isSigned = part.thoughtSignature !== undefined
      const grows =
        typeof part.text === 'string' &&
        typeof previous?.text === 'string' &&
        previous.thought === part.thought &&
        !isSigned
      if (grows) previous.text = `${previous.text}${part.text}`
      else if (part.text !== '' || isSigned) parts.push({ ...part })
    }
  }
  const content = parts.length > 0 ? { content: { role: 'model', parts } } : {}
  return { ...end, candidates: [{ ...last, ...content }] }
}
