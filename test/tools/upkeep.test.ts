/** What a process remembers of the servers from whose lists it made sessions' registries. */
import { pino } from 'pino'
import t from 'tap'
import type { Ground, Make, Next } from '../../src/tools/registries.ts'
import { createUpkeep, type UpkeepDeps } from '../../src/tools/upkeep.ts'
import { connector, NOW } from './session-tools-doubles.ts'

const away = { tools: null, seen_at: null, left_out: [], state: 'away' as const, reason: null, mark: null }

t.test('the memory of sessions is bounded by their servers, not by their number alone', async (t) => {
  const bound = Array.from({ length: 50 }, (_, i) => connector(`s${i}`))
  const bindings = bound.map((one) => ({ connector: one, alias: null, off: [] }))
  const change = async (session_id: string, make: Make) => {
    const row = { session_id, revision: 0, updated_at: NOW, tools: [] }
    const ground: Ground = { row, ageMs: 0, bindings, pins: new Map() }
    const next: Next = await make(ground)
    next.onStored?.()
    return { row, before: row, delta: { tools_revision: 0, added: [], removed: [], changed: [] } }
  }
  const deps: Partial<UpkeepDeps> = {
    discovery: {
      lookUp: async (asked) => asked.map(({ connector }) => ({ connector, server: connector.name, ...away })),
      heard: () => [],
      awaitExpected: async () => {},
      marks: () => [],
      isExpected: () => false,
    },
    registries: { change, changeTogether: async () => [], weightOf: () => 1 },
    builtins: [],
    log: pino({ level: 'silent' }),
  }
  const upkeep = createUpkeep(deps as UpkeepDeps)
  const sessions = Array.from({ length: 2_100 }, (_, i) => `ses_${i}`)
  for (const session of sessions) await upkeep.update(session)
  t.not(upkeep.standing('ses_2099'), 'unknown')
  t.not(upkeep.standing('ses_300'), 'unknown')
  t.equal(upkeep.standing('ses_0'), 'unknown', 'the least used session is not remembered')
  for (let i = 0; i < 3; i++) await upkeep.update('ses_300')
  t.not(upkeep.standing('ses_400'), 'unknown', 'a session that is updated again takes no more room')
})
