/** Bodies as bytes, and which of the bytes are kept. */
import t from 'tap'
import { bodyBytes } from '../../src/llm/body.ts'
import { held } from '../memory.ts'

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
  let written = 0
  const slow = () => {
    const end = performance.now() + 6
    while (performance.now() < end);
    written++
    return 'text'
  }
  let seen = 0
  setImmediate(() => {
    seen = written
  })
  const messages = Array.from({ length: 10 }, () => Object.freeze({ toJSON: slow }))
  t.equal(
    (await bodyBytes({ messages })).toString(),
    JSON.stringify({ messages: messages.map(() => 'text') }),
  )
  t.equal(written, 10)
  t.ok(seen > 0 && seen < 10, `${seen} of them`)
})
