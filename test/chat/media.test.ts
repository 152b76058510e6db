/** What a medium is: by its bytes, and by a name that vendors know. */
import t from 'tap'
import { asItIs } from '../../src/chat/media.ts'

t.test('image/jpg is held to be image/jpeg, also where no bytes tell', async (t) => {
  const url = 'https://pictures.example/1'
  t.same(asItIs({ type: 'image', media_type: 'image/JPG', url }), {
    type: 'image',
    media_type: 'image/jpeg',
    url,
  })
  const data = Buffer.from('this is no picture').toString('base64')
  t.equal(asItIs({ type: 'image', media_type: 'image/jpg', data }), null, 'and its bytes deny it')
})

t.test('parameters of a type are left out', async (t) => {
  const data = Buffer.from('hello').toString('base64')
  const file = { type: 'file' as const, media_type: 'Text/Plain ; charset=utf-8', data }
  t.strictSame(asItIs(file), { ...file, media_type: 'text/plain' })
  const image = { type: 'image' as const, media_type: 'image/png;q=1', url: 'https://pictures.example/1' }
  t.strictSame(asItIs(image), { ...image, media_type: 'image/png' })
})

t.test('a type of any length costs what its length is', async (t) => {
  const { user } = process.cpuUsage()
  asItIs({ type: 'image', media_type: `x${' '.repeat(200_000)}y`, data: 'aGk=' })
  t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 2)
})
