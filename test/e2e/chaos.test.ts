/**
 * A short run of bench/chaos: replicas as processes of their own, killed, frozen and replaced under turns,
 * and the checker afterwards. `npm run chaos` is the long one.
 */
import t, { type Test } from 'tap'
import { type Finding, KINDS } from '../../bench/chaos/check.ts'
import { follow } from '../../bench/chaos/reader.ts'
import { checkAfterwards, runRounds } from '../../bench/chaos/rounds.ts'
import { rollingRestart } from '../../bench/chaos/scenarios.ts'
import { type ChaosTurn, newSession } from '../../bench/chaos/workload.ts'
import { openWorld, request, type World } from '../../bench/chaos/world.ts'

const { TEST_DATABASE_URL, TEST_REDIS_URL, CI } = process.env
const hasServers = Boolean(TEST_DATABASE_URL && TEST_REDIS_URL)
const skip = hasServers ? false : 'TEST_DATABASE_URL and TEST_REDIS_URL name no servers'
/** For machines that are slow or do other things; the bench measures, this only judges. */
const PATIENCE_MS = 120_000

if (!hasServers && CI === 'true') t.fail('TEST_DATABASE_URL and TEST_REDIS_URL are needed')
// Three processes start again and again.
t.setTimeout(900_000)

t.test('replicas that die, freeze and are replaced', { skip }, async (t) => {
  const given = { databaseUrl: TEST_DATABASE_URL ?? '', redisUrl: TEST_REDIS_URL ?? '' }
  const world = await openWorld({ given })
  t.teardown(() => world.close())

  await t.test(
    'ten kills and a freeze at random moments of tool turns lose and repeat nothing',
    async (t) => {
      const options = { turns: 2, slackMs: PATIENCE_MS, say: (line: string) => t.comment(line) }
      const killed = await runRounds(world, { ...options, rounds: 10, seed: 11, faults: ['kill'] })
      const frozen = await runRounds(world, { ...options, rounds: 1, seed: 12, faults: ['freeze'] })
      nothingFound(t, [...killed.findings, ...frozen.findings])
      t.ok(killed.struck > 0, 'turns were struck')
    },
  )

  await t.test('a deploy under load costs no client more than a reconnection', async (t) => {
    const { findings, exits, recoveries, turns } = await rollingRestart(world, { clients: 3, seed: 13 })
    nothingFound(t, findings)
    t.same(exits, [0, 0, 0], 'every replica ended by itself')
    t.equal(recoveries, 0, 'and gave its turns away before')
    t.ok(turns > 0)
  })

  await t.test('a turn that loses its owner a fourth time fails with its reason, its calls settled', (t) =>
    losesItsOwnerOnceMore(t, world),
  )
})

async function losesItsOwnerOnceMore(t: Test, world: World): Promise<void> {
  const session = await newSession(world, 0)
  const input = 'call kit__charge with {"id": "fourth", "ms": 600000}'
  const path = `/v1/sessions/${session}/turns`
  const { body } = await request(world, 'POST', path, { input, background: true }, { first: 0 })
  const reading = follow(String(body.id), {
    kind: 'staying',
    place: (i) => world.replicas[1 + (i % 2)]?.url ?? '',
    signal: AbortSignal.timeout(PATIENCE_MS),
  })
  while (!world.tools.calls.some(({ args }) => args.id === 'fourth')) {
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  await world.database.query('update turn set recoveries = 3 where id = $1', [body.id])
  await world.replicas[0]?.end('SIGKILL')
  await reading.done
  const end = JSON.parse(reading.events.at(-1)?.data ?? '{}')
  t.match(end, { type: 'turn.failed', error: { code: 'recovery_limit' } })
  const turn: ChaosTurn = {
    id: String(body.id),
    session,
    key: '',
    input,
    charges: ['fourth'],
    looks: [],
    lastWords: '',
    provider: null,
    isCancelled: false,
    readings: [reading],
  }
  nothingFound(t, await checkAfterwards(world, turn))
  const { rows } = await world.database.query('select outcome from execution where turn_id = $1', [body.id])
  t.same(rows, [{ outcome: 'outcome_unknown' }])
}

function nothingFound(t: Test, findings: readonly Finding[]): void {
  for (const kind of KINDS) {
    t.same(
      findings.filter((finding) => finding.kind === kind),
      [],
      kind,
    )
  }
}
