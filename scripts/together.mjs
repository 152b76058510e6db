// Runs the test files of its command line one after another in this process, each as a subtest of its name. What a file
// asks of tap's root it asks of its own subtest: it has a time limit of its own, and what it opened is closed before the
// next file is loaded.
import { mock } from 'node:test'
import { pathToFileURL } from 'node:url'

// tap names folders after the command line, which would be too long.
const files = process.argv.splice(2)
const { default: t } = await import('tap')

const ITS_OWN = [
  'test',
  'teardown',
  'setTimeout',
  'before',
  'after',
  'beforeEach',
  'afterEach',
  'capture',
  'intercept',
]

const { test, setTimeout: limit, end } = t
const patience = t.options.timeout
limit(0)
let own
for (const method of ITS_OWN) Object.defineProperty(t, method, { get: () => own[method].bind(own) })

for (const file of files) {
  const environment = JSON.stringify(process.env)
  await test(file, async (subtest) => {
    own = subtest
    own.setTimeout(patience)
    await import(pathToFileURL(file))
  })
  mock.reset()
  const rules = {
    'has a test': own.count > 0,
    'leaves the environment as it was': JSON.stringify(process.env) === environment,
  }
  for (const [rule, isKept] of Object.entries(rules))
    if (!isKept) await test(`${file} ${rule}`, async (t) => t.fail())
}
end()
