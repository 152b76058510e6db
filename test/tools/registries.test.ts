/** Registries as a process keeps them. */
import { pino } from 'pino'
import t from 'tap'
import type { RegistryRow, RegistryTool } from '../../src/store/store.ts'
import { createRegistries, type RegistriesDeps } from '../../src/tools/registries.ts'

t.test('what is kept is bounded by size, however few the tools', (t) => {
  const store = {} as RegistriesDeps['store']
  const registries = createRegistries({ store, emit: async () => {}, log: pino({ level: 'silent' }) })
  const words = 'x'.repeat(4 << 20)
  const row = (session_id: string): RegistryRow => {
    const tool = { description: '', parameters: {}, input_schema: { description: words } }
    return { session_id, revision: 1, updated_at: '', tools: [tool as RegistryTool] }
  }
  const sessions = Array.from({ length: 20 }, (_, i) => `ses_${i}`)
  for (const session of sessions) registries.keep(row(session))
  const kept = sessions.map((session) => registries.keptRevision(session))
  t.strictSame(kept, [-1, -1, -1, -1, -1, ...Array(15).fill(1)], 'those that were kept first have gone')
  t.equal(registries.latestRevision('ses_0'), 1, 'and are known by number')
  t.end()
})
