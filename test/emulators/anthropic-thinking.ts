/**
 * The emulated API's thinking blocks. It signs each block that it hands out, and refuses a block that comes back if it
 * is not its own, was changed, or follows another prefix (wire/anthropic.md 4.4). The real API drops some of these
 * silently; this API drops them only with `drop_block`, so that tests notice.
 */
import { createHash, createHmac } from 'node:crypto'
import type { EmulatedModel } from './anthropic-models.ts'
import { mergeRoles, type Turn } from './anthropic-order.ts'
import { invalid } from './anthropic-rules.ts'
import { type Json, object, parseObject, string } from './json.ts'

/** Who asks, and the request. */
export interface Asker {
  model: EmulatedModel
  organization: string
  body: Json
}

/** What a signature vouches for. */
interface Claim {
  model: string
  organization: string
  /** Hash of the block's own text */
  text: string
  /** Hash of system, tools and all that precedes the block; empty if the model does not bind */
  prefix: string
  /** The response with the block, the block's place among the response's thinking blocks, and their number */
  response: string
  place: number
  of: number
}

const KEY = 'the emulator signs with this'
const hash = (text: string): string => createHash('sha256').update(text).digest('hex').slice(0, 32)

export function sign(claim: Claim): string {
  const payload = Buffer.from(JSON.stringify(claim)).toString('base64')
  return `E${payload}.${createHmac('sha256', KEY).update(payload).digest('base64')}`
}

function claimOf(token: string): Claim | null {
  const [payload = '', mac] = token.slice(1).split('.')
  if (mac !== createHmac('sha256', KEY).update(payload).digest('base64')) return null
  // Only this file signs, so a payload with the right mac is a Claim.
  return parseObject(Buffer.from(payload, 'base64').toString()) as Claim | null
}

const isThinking = ({ type }: Json) => type === 'thinking' || type === 'redacted_thinking'
const tokenOf = (block: Json) => string(block.type === 'thinking' ? block.signature : block.data) ?? ''

/**
 * A value as JSON. Cache marks are no part of the prefix (litellm's page on preserved thinking), and all else is, to
 * the byte.
 */
export const bytes = (value: unknown): string =>
  JSON.stringify(value, (key, item) => (key === 'cache_control' ? undefined : item)) ?? ''

/** Hash of all that precedes a block: `turns`, and `before` in the block's own message. */
function prefixOf({ body }: Asker, turns: readonly Turn[], before: readonly Json[]): string {
  // In the block's own message the client may choose other ids, and leave out members that only answers have.
  const own = before.map(({ id: _, citations: __, caller: ___, ...block }) => block)
  return hash(bytes([body.system, body.tools, turns.map(({ role, blocks }) => ({ role, blocks })), own]))
}

/** What the signature of a response's block vouches for; `text` is what the client sees of the block. */
export const claimFor = (
  asker: Asker,
  turns: readonly Turn[],
  before: readonly Json[],
  text: string,
  part: { response: string; place: number; of: number },
): Claim => ({
  model: asker.model.id,
  organization: asker.organization,
  text: hash(text),
  prefix: asker.model.bound ? prefixOf(asker, turns, before) : '',
  ...part,
})

export interface Transformation {
  type: 'thinking_dropped'
  path: string
  reason: string
}

type Mode = 'on' | 'off' | 'between_tools'

/** Whether and when the model thinks under this request. */
export function modeOf({ thinking }: Json, model: EmulatedModel): Mode {
  const type = object(thinking).type
  if (type === 'between_tools') return 'between_tools'
  if (type === undefined) return model.unasked ? 'on' : 'off'
  return type === 'disabled' ? 'off' : 'on'
}

/** Checks every thinking block that came back. Returns the blocks that are dropped. */
export function checkReplay(asker: Asker, turns: readonly Turn[]): Transformation[] {
  const { body, model } = asker
  const thinking = object(body.thinking)
  const drop = object(thinking.block_binding).prefix_mismatch_behavior === 'drop_block'
  const dropped: Transformation[] = []
  let broken = false
  for (const turn of turns) {
    const last = turn.blocks.at(-1)
    if (turn.role === 'assistant' && last && isThinking(last)) {
      invalid(`messages.${turn.index}: The final block in an assistant message cannot be \`${last.type}\`.`)
    }
    turn.blocks.forEach((block, i) => {
      if (!isThinking(block)) return
      const path = `messages.${turn.index}.content.${i}`
      const claim = claimOf(tokenOf(block))
      const text = block.type === 'thinking' ? (string(block.thinking) ?? '') : ''
      const token = block.type === 'thinking' ? 'signature' : 'data'
      if (!claim || claim.text !== hash(text)) {
        invalid(`${path}: Invalid \`${token}\` in \`${block.type}\` block`)
      }
      const reason = mismatch(asker, claim, () =>
        prefixOf(asker, turns.slice(0, turns.indexOf(turn)), turn.blocks.slice(0, i)),
      )
      // After one broken prefix all later thinking is broken, too.
      if (reason === 'prefix_binding_mismatch') broken = true
      const why = reason ?? (broken ? 'prefix_binding_mismatch' : null)
      if (!why) return
      if (drop) dropped.push({ type: 'thinking_dropped', path, reason: why })
      else
        invalid(
          `${path}: Invalid \`signature\` in \`thinking\` block. The block is bound to a different conversation. Remove the block, or set \`thinking.block_binding.prefix_mismatch_behavior\` to "drop_block". (${why})`,
        )
    })
  }
  checkOpenTurn(turns, thinking, modeOf(body, model))
  return dropped
}

function mismatch({ model, organization }: Asker, claim: Claim, prefix: () => string): string | null {
  if (claim.organization !== organization) return 'organization_binding_mismatch'
  if (claim.model !== model.id) return 'model_binding_mismatch'
  return model.bound && claim.prefix !== prefix() ? 'prefix_binding_mismatch' : null
}

/**
 * The rules for thinking of a tool turn that has not ended: complete, in order, at the head, and not while thinking is
 * off.
 */
function checkOpenTurn(turns: readonly Turn[], thinking: Json, mode: Mode): void {
  const open = openTurn(turns)
  for (const { blocks, index } of open) {
    const own = blocks.filter(isThinking)
    if (own.length > 0 && mode === 'off') {
      invalid(
        `messages.${index}.content.${blocks.findIndex(isThinking)}: When thinking is disabled, an \`assistant\` message in the final position cannot contain \`thinking\`.`,
      )
    }
    const claims = own.map((block) => claimOf(tokenOf(block)))
    const whole = claims.every((claim, i) => claim?.place === i && claim.of === own.length)
    if (!whole) {
      invalid(
        `messages.${index}.content.0: \`thinking\` or \`redacted_thinking\` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response.`,
      )
    }
  }
  if (thinking.type !== 'enabled') return
  const head = open[0]?.blocks[0]
  if (head && !isThinking(head)) {
    invalid(
      `messages.${open[0]?.index}.content.0.type: Expected \`thinking\` or \`redacted_thinking\`, but found \`${head.type}\`. When \`thinking\` is enabled, a final \`assistant\` message must start with a thinking block (preceeding the lastmost set of \`tool_use\` and \`tool_result\` blocks).`,
    )
  }
  for (const { role, index, blocks } of turns) {
    if (role !== 'assistant' || blocks.findIndex(isThinking) <= 0) continue
    invalid(
      `messages.${index}.content.0: If an assistant message contains any thinking blocks, the first block must be \`thinking\` or \`redacted_thinking\`.`,
    )
  }
}

/** The assistant's messages since the last user message without results. None if the last message answers no call. */
function openTurn(turns: readonly Turn[]): Turn[] {
  const open: Turn[] = []
  const merged = mergeRoles(turns.filter(({ role }) => role !== 'system'))
  for (let i = merged.length - 1; i > 0; i -= 2) {
    const [user, assistant] = [merged[i], merged[i - 1]]
    if (!user || !assistant || user.role !== 'user') break
    if (!user.blocks.some(({ type }) => type === 'tool_result')) break
    open.unshift(assistant)
  }
  return open
}
