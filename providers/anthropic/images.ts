/** A request may hold so many images and no more (wire/anthropic.md 3.6): the newest are the ones to show. */
import type { ContentBlock, UserBlock, WireMessage } from './wire.ts'

/**
 * The messages with no more than `most` images. The oldest give way, a quarter of all at a time: what is sent
 * before the others stays the same for many requests, and with it the cache.
 */
export function withinImages(messages: WireMessage[], most: number, note: (text: string) => void) {
  const count = messages.reduce((sum, { content }) => sum + imagesIn(content), 0)
  if (count <= most) return messages
  const quarter = Math.ceil(most / 4)
  let excess = Math.ceil((count - most) / quarter) * quarter
  note(`messages: the oldest ${excess} images are left out, the vendor takes at most ${most}`)
  const shown = (block: ContentBlock): ContentBlock =>
    block.type === 'image' && excess-- > 0
      ? { type: 'text', text: '[An older image is not shown any more]' }
      : block
  const fit = (block: UserBlock): UserBlock => {
    if (block.type !== 'tool_result') return shown(block)
    return block.content ? { ...block, content: block.content.map(shown) } : block
  }
  return messages.map((message) =>
    message.role === 'user' ? { ...message, content: message.content.map(fit) } : message,
  )
}

function imagesIn(content: WireMessage['content']): number {
  let count = 0
  for (const block of content) {
    if (block.type === 'image') count++
    if (block.type === 'tool_result') count += imagesIn(block.content ?? [])
  }
  return count
}
