/** How long the ledger is kept. */
import { setImmediate as nextPass } from 'node:timers/promises'
import { pino } from 'pino'
import t from 'tap'
import type { Db } from '../../src/store/db.ts'
import { createExecutions } from '../../src/store/executions.ts'
import { createParts, PLAIN_PARTS } from '../../src/store/parts.ts'
import { startRetention } from '../../src/tools/retention.ts'
import { within } from '../../src/within.ts'

t.test('a process that ends does not wait until a long ledger is pruned', async (t) => {
  let left = 1_000_000
  const query = async () => {
    await nextPass()
    return [{ count: left-- }]
  }
  const executions = createExecutions({ query } as unknown as Db, createParts(PLAIN_PARTS))
  const log = pino({ level: 'silent' })
  const retention = startRetention({ store: { executions }, retentionMs: 60_000, log })
  await nextPass()
  const closed = retention.close().then(() => 'closed')
  t.equal(await within(2_000, closed), 'closed')
  left = 0
  await closed
})
