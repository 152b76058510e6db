/** Work that is repeated. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { repeat } from '../src/within.ts'
import { eventually, gate } from './waiting.ts'

t.test('work is repeated, never twice at once, and its last round is waited for', async (t) => {
  const [first, second] = [gate(), gate()]
  let begun = 0
  const rounds = repeat(2, () => (++begun === 1 ? first.opened : second.opened))
  await eventually(() => begun === 1)
  await sleep(50)
  t.equal(begun, 1, 'the first round is not over yet')
  first.open()
  await eventually(() => begun === 2)
  let isStopped = false
  const stopping = rounds.stop().then(() => {
    isStopped = true
  })
  await sleep(50)
  t.notOk(isStopped, 'the second round is not over yet')
  second.open()
  await stopping
  await sleep(50)
  t.equal(begun, 2, 'no further round begins')
})
