/** Bodies as bytes, and which of the bytes are kept. */
import t from 'tap'
import { bodyBytes } from '../../src/llm/body.ts'
import { held } from '../memory.ts'
import { holdLoop, passesOf } from '../waiting.ts'

t.test('a message whose bytes are kept holds its own bytes, and no others', async (t) => {
  const before = await held('arrayBuffers')
  const kept: object[] = []
  for (let n = 0; n < 2_000; n++) {
    // Bytes that are made and let go between two messages.
    Buffer.from('x'.repeat(4_000))
    const message = Object.freeze({ role: 'user', content: `number ${n}` })
    await bodyBytes({ messages: [message] })
    kept.push(message)
  }
  const grown = (await held('arrayBuffers')) - before
  t.ok(grown < 2 << 20, `${grown} bytes for ${kept.length} messages`)
})

t.test('a long history is written while others have the event loop', async (t) => {
  const slow = () => {
    holdLoop(6)
    return 'text'
  }
  const messages = Array.from({ length: 10 }, () => Object.freeze({ toJSON: slow }))
  let written = ''
  const writing = async () => {
    written = String(await bodyBytes({ messages }))
  }
  t.ok((await passesOf(writing)) > 1)
  t.equal(written, JSON.stringify({ messages: messages.map(() => 'text') }))
})
