import t from 'tap'
import { readPasted } from '../../src/credentials/logins/answer.ts'

t.test('pasted texts are read as people copy them', async (t) => {
  const read = (text: string) => Object.fromEntries(readPasted(text))
  t.same(read('"http://localhost:1455/auth/callback?code=c&state=s"'), { code: 'c', state: 's' })
  t.same(read('<https://x.test/cb#code=c&state=s>'), { code: 'c', state: 's' })
  for (const address of ['localhost:1455/auth/callback', '127.0.0.1:8085/oauth2callback', '/auth/callback']) {
    t.same(read(`${address}?state=s&code=4%2F0c`), { state: 's', code: '4/0c' }, `${address}, no scheme`)
  }
  t.same(read('localhost:1455/auth/callback?error=access_denied'), { error: 'access_denied' })
  t.same(read('http://[broken'), {})
  t.same(read('?error=access_denied&state=s'), { error: 'access_denied', state: 's' })
  t.same(read('state=s&code=c'), { state: 's', code: 'c' })
  t.same(read('#code=c&state=s'), { code: 'c', state: 's' })
  t.same(read('4/0Ab_c-d#s'), { code: '4/0Ab_c-d', state: 's' })
  t.same(read('4%2F0Ab_c-d'), { code: '4/0Ab_c-d' }, 'a code out of an address')
  t.same(read('a+b&c%zz'), { code: 'a+b&c%zz' })
  t.same(read('code'), { code: 'code' })
  t.same(read('<<code>"\''), { code: 'code' })
  t.same(read('Copy this code: c'), {})
  // A caller who may log in can paste anything.
  const odd = `a${'"'.repeat(200_000)}b`
  const { user } = process.cpuUsage()
  t.same(read(odd), { code: odd })
  t.ok(process.cpuUsage({ user, system: 0 }).user / 1e6 < 2)
})
