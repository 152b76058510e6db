/** Which tools a connector's globs let through. */
import t from 'tap'
import { isOffered } from '../../src/tools/offered.ts'
import { connector } from './session-tools-doubles.ts'

t.test('a glob with many stars matches correctly and quickly', async (t) => {
  const passes = (glob: string, name: string) => isOffered(connector('s', { allow_tools: [glob] }), name)
  const table: [glob: string, fits: string[], fitsNot: string[]][] = [
    ['read', ['read'], ['reader', 'read*', '']],
    ['*', ['read', ''], []],
    ['a*a', ['aa', 'aba'], ['a', 'ab']],
    ['a*', ['a', 'ab'], ['ba', '']],
    ['*b*', ['b', 'abc', 'a\nb'], ['ac']],
    ['a**c*d', ['acd', 'abcxd', 'accdd'], ['adc', 'acdx']],
    ['*ab*abc', ['ab_abc', 'ababc'], ['abc', 'ab_abc_']],
    ['rea?', ['read', 'rea?'], ['rea', 'lead', 'reads', 'xread']],
    ['?*a?c*?', ['xabcx', 'x_aac_abcx'], ['abcx', 'xabc', 'xacx']],
    ['*a?*', ['ab', 'xabx'], ['a', 'xb']],
    ['*?', ['a', 'ab'], ['']],
    ['??**', ['ab'], ['a']],
    ['a.c', ['a.c'], ['abc']],
  ]
  for (const [glob, fits, fitsNot] of table) {
    for (const name of fits) t.ok(passes(glob, name), `${glob} matches ${JSON.stringify(name)}`)
    for (const name of fitsNot) t.notOk(passes(glob, name), `${glob} does not match ${JSON.stringify(name)}`)
  }
  const started = process.cpuUsage().user
  t.notOk(passes(`${'*a'.repeat(100)}b`, 'a'.repeat(400)))
  t.ok(process.cpuUsage().user - started < 1_000_000)
})
