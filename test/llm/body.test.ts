/** Bodies as bytes, and what of them is kept. */
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t from 'tap'
import { bodyBytes } from '../../src/llm/body.ts'

t.test('what is kept of a message takes its own bytes, and no other', async (t) => {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  const held = async () => {
    for (let i = 0; i < 3; i++) {
      collect()
      await sleep(10)
    }
    return process.memoryUsage().arrayBuffers
  }
  const before = await held()
  const kept = Array.from({ length: 2_000 }, (_, n) => {
    // What goes through between two messages.
    Buffer.from('x'.repeat(4_000))
    const message = Object.freeze({ role: 'user', content: `number ${n}` })
    bodyBytes({ messages: [message] })
    return message
  })
  const grown = (await held()) - before
  t.ok(grown < 2 << 20, `${grown} bytes for ${kept.length} messages`)
})
