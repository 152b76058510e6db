/** Exposed names, ids of calls and ids of our own. */
import { mock } from 'node:test'
import fc from 'fast-check'
import t from 'tap'
import { idAt, newId } from '../../src/chat/ids.ts'
import { exposedName, legalCallId } from '../../src/chat/names.ts'
import { ANY_CHARACTER } from '../characters.ts'
import { RUNS } from './histories.ts'

t.test('exposed names follow the contract', async (t) => {
  t.equal(exposedName('srv.read_file'), 'srv__read_file')
  t.equal(exposedName('srv.a.b'), 'srv__a_b_65c532', 'a replaced character brings the canonical name’s hash')
  t.equal(exposedName('srv.行'), 'srv____d9b540')
  const long = `srv.${'x'.repeat(40)}${'y'.repeat(40)}`
  t.match(exposedName(long), /^srv__x{23}_y{27}_[0-9a-f]{6}$/)
  t.equal(exposedName(long).length, 63)
  t.match(
    exposedName(''),
    /^_[0-9a-f]{6}$/,
    'a call without a name, in an old history, gets one to be sent by',
  )
  const full = 'x'.repeat(58)
  t.equal(exposedName(`srv.${full}`), `srv__${full}`, 'a name of exactly 63 characters stays')
  t.match(exposedName(`srv.${'x'.repeat(59)}`), /^.{56}_[0-9a-f]{6}$/, 'a name of 64 characters is cut')
  const replaced = (length: number) => exposedName(`srv.${'x'.repeat(length - 7)}.y`)
  t.match(
    replaced(56),
    /^srv__x{49}_y_[0-9a-f]{6}$/,
    'of a name that gets a hash, exactly 56 characters stay',
  )
  t.match(replaced(57), /^srv__x{23}_x{25}_y_[0-9a-f]{6}$/, 'a name of 57 characters that gets a hash is cut')
  fc.assert(
    fc.property(fc.string({ minLength: 1, unit: ANY_CHARACTER, maxLength: 80, size: 'max' }), (name) => {
      const exposed = exposedName(`srv.${name}`)
      return /^[A-Za-z_][A-Za-z0-9_-]{0,62}$/.test(exposed) && exposedName(`srv.${name}`) === exposed
    }),
    RUNS,
  )
})

t.test('call ids become legal and stay distinct; a legal id stays as it is', async (t) => {
  t.equal(legalCallId('x'.repeat(64)), 'x'.repeat(64))
  fc.assert(
    fc.property(fc.uniqueArray(fc.string({ maxLength: 80, size: 'max' }), { maxLength: 20 }), (ids) => {
      const legal = ids.map(legalCallId)
      return new Set(legal).size === ids.length && legal.every((id) => /^[A-Za-z0-9_-]{1,64}$/.test(id))
    }),
    RUNS,
  )
})

t.test('ids sort by the time they were made', async (t) => {
  const ids = Array.from({ length: 500 }, () => newId('msg'))
  t.strictSame([...ids].sort(), ids)
  t.equal(new Set(ids).size, ids.length)
  t.match(ids[0], /^msg_[0-9a-z]{24}$/)
  const [before, after] = [idAt('msg', Date.now() - 3_600_000), idAt('msg', Date.now() + 3_600_000)]
  const all = [idAt('msg', -1), before, ...ids, after, idAt('msg', Date.parse('9999-12-31'))]
  t.strictSame([...all].sort(), all, 'with any time between them')
})

t.test('ids keep their order while the clock is behind the last id', async (t) => {
  const before = newId('msg')
  const past = Date.now() - 3_600_000
  mock.method(Date, 'now', () => past)
  t.teardown(() => mock.restoreAll())
  const ids = [before, ...Array.from({ length: 5000 }, () => newId('msg'))]
  t.strictSame([...ids].sort(), ids)
})
