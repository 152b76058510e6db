/** Limits on a request's images (wire/anthropic.md 3.6): how many there may be, and how large each, alone or among many. */
import { longerSide } from '../../src/chat/media.ts'
import { once } from '../../src/chat/once.ts'
import type { ContentBlock, ImageBlock, UserBlock, WireMessage } from './wire.ts'

/** Characters of base64 of one image */
const MOST_DATA = 10 * 1024 * 1024
const MOST_PIXELS = 8000
/** A request with more than `images` images is refused if one of them has more than `pixels` a side. */
const MANY = { images: 20, pixels: 2000 }

/** The vendor refuses such an image even without others. */
export const isTooLarge = (base64: string): boolean =>
  base64.length > MOST_DATA || longerSide(base64) > MOST_PIXELS

/**
 * The messages with no more than `most` images and documents (counted together: anthropics/claude-code#24541), and, if
 * there are many, without images that are too large for that.
 */
export function withinImages(messages: WireMessage[], most: number, notes: string[]): WireMessage[] {
  const places = Math.max(1, most - blocksIn(messages, 'document'))
  const few = without(messages, places, () => true, '[An older image is not shown any more]')
  if (few.gone > 0)
    notes.push(
      `messages: the oldest ${few.gone} images are left out, the vendor takes at most ${most} with documents`,
    )
  const placeholder = `[An image of more than ${MANY.pixels} pixels a side is not shown any more]`
  const fit = without(few.messages, MANY.images, isLarge, placeholder)
  if (fit.gone > 0)
    notes.push(
      `messages: ${fit.gone} images are left out, among more than ${MANY.images} the vendor takes none above ${MANY.pixels} pixels a side`,
    )
  return fit.messages
}

/** Remembered, since a JPEG may have to be read up to its thousandth segment, with each request. */
const isLarge = once(
  ({ source }: ImageBlock): boolean => source.type === 'base64' && longerSide(source.data) > MANY.pixels,
)

/**
 * If there are more than `most` images, the oldest of those that `mayGo` allows become `text`. They go a quarter of
 * `most` at a time, so that the head of the conversation stays the same over many requests, and its cache lives.
 */
function without(
  messages: WireMessage[],
  most: number,
  mayGo: (image: ImageBlock) => boolean,
  text: string,
): { messages: WireMessage[]; gone: number } {
  const count = blocksIn(messages, 'image')
  if (count <= most) return { messages, gone: 0 }
  const quarter = Math.ceil(most / 4)
  const excess = Math.ceil((count - most) / quarter) * quarter
  let gone = 0
  const shown = (block: ContentBlock): ContentBlock => {
    if (block.type !== 'image' || gone === excess || !mayGo(block)) return block
    gone++
    return { type: 'text', text }
  }
  const fit = (block: UserBlock): UserBlock => {
    if (block.type !== 'tool_result') return shown(block)
    return block.content ? { ...block, content: block.content.map(shown) } : block
  }
  const kept = messages.map((message) =>
    message.role === 'user' ? { ...message, content: message.content.map(fit) } : message,
  )
  return { messages: kept, gone }
}

const blocksIn = (messages: readonly WireMessage[], type: 'image' | 'document'): number =>
  messages.reduce((sum, { content }) => sum + countOf(content, type), 0)

function countOf(content: WireMessage['content'], type: 'image' | 'document'): number {
  let count = 0
  for (const block of content) {
    if (block.type === type) count++
    if (block.type === 'tool_result') count += countOf(block.content ?? [], type)
  }
  return count
}
