/** Bodies as bytes, and which of the bytes are kept. */
import t from 'tap'
import { bodyBytes } from '../../src/llm/body.ts'
import { held } from '../memory.ts'

t.test('a message whose bytes are kept holds its own bytes, and no others', async (t) => {
  const before = await held('arrayBuffers')
  const kept = Array.from({ length: 2_000 }, (_, n) => {
    // Bytes that are made and let go between two messages.
    Buffer.from('x'.repeat(4_000))
    const message = Object.freeze({ role: 'user', content: `number ${n}` })
    bodyBytes({ messages: [message] })
    return message
  })
  const grown = (await held('arrayBuffers')) - before
  t.ok(grown < 2 << 20, `${grown} bytes for ${kept.length} messages`)
})
