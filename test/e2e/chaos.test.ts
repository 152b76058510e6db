/**
 * A short run of bench/chaos: replicas as processes of their own, killed, frozen and replaced under turns,
 * and the checker afterwards. `npm run chaos` is the long one.
 */
import { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import { type Finding, KINDS } from '../../bench/chaos/check.ts'
import { rollingRestart } from '../../bench/chaos/deploy.ts'
import type { Fault } from '../../bench/chaos/faults.ts'
import { follow, type Reading } from '../../bench/chaos/reader.ts'
import { checkAfterwards, runRounds } from '../../bench/chaos/rounds.ts'
import { databaseAway } from '../../bench/chaos/scenarios.ts'
import { type ChaosTurn, newSession, newTurn } from '../../bench/chaos/workload.ts'
import { openWorld, request, type World } from '../../bench/chaos/world.ts'
import { ON_SERVERS } from '../given-servers.ts'
import { eventually } from '../waiting.ts'

/** For machines that are slow or do other things; the bench measures, this only judges. */
const PATIENCE_MS = 120_000

// Three processes start again and again.
t.setTimeout(900_000)

t.test('replicas that die, freeze and are replaced', ON_SERVERS, async (t) => {
  // The world has servers of its own, since some of the faults befall the servers.
  const world = await openWorld({ durable: false })
  t.teardown(() => world.close())
  const play = (rounds: number, turns: number, seed: number, fault: Fault) =>
    runRounds(world, {
      rounds,
      turns,
      seed,
      faults: [fault],
      slackMs: PATIENCE_MS,
      say: (line) => t.comment(line),
    })

  await t.test('kills at random moments of eight tool turns lose and repeat nothing', async (t) => {
    const { findings, struck } = await play(2, 4, 11, 'kill')
    nothingFound(t, findings)
    t.ok(struck > 0, 'turns were struck')
  })

  await t.test(
    'a frozen owner, a Redis that is emptied, restarted or mute, and a full disk lose and repeat nothing',
    async (t) => {
      for (const fault of ['freeze', 'redis_flush', 'redis_restart', 'redis_mute', 'disk_full'] as const) {
        nothingFound(t, (await play(1, 1, 12, fault)).findings)
      }
    },
  )

  await t.test(
    'cancels, tool changes, provider switches, repeats and queues across replicas lose and repeat nothing',
    async (t) => {
      for (const fault of ['cancel', 'tools', 'switch', 'twice', 'queue'] as const) {
        nothingFound(t, (await play(1, 2, 13, fault)).findings)
      }
    },
  )

  await t.test('while PostgreSQL is away turns wait, new ones are refused, readiness says so', async (t) => {
    const { findings, refusal, ready } = await databaseAway(world, { ms: 2000, seed: 14, count: 2 })
    nothingFound(t, findings)
    t.match(refusal, { status: 503, body: { error: { code: 'unavailable' } }, retryAfter: /^[1-9]/ })
    t.match(ready, { status: 503, reason: /store/ })
  })

  await t.test('a deploy under load costs no client more than a reconnection', async (t) => {
    const { findings, exits, recoveries, turns } = await rollingRestart(world, {
      load: { clients: 3 },
      seed: 15,
      withTools: 0.8,
      calmMs: 0,
      say: (line) => t.comment(line),
    })
    nothingFound(t, findings)
    t.same(exits, [0, 0, 0], 'every replica ended by itself')
    // There are none on a machine that has time; a starved machine loses leases of two seconds without any deploy.
    t.comment(`${recoveries} turns were taken over`)
    t.ok(turns > 0)
  })

  await t.test('a turn that loses its owner a fourth time fails with its reason, its calls settled', (t) =>
    losesItsOwnerOnceMore(t, world),
  )
  await t.test('an owner that hears no cancel loses the turn at the deadline, alive or not', (t) =>
    hearsNothing(t, world),
  )
})

interface Held {
  turn: ChaosTurn
  reading: Reading
}

/** A turn at this replica that hangs in a call, followed at the others. */
async function hangingTurn(world: World, at: number, name: string): Promise<Held> {
  const session = await newSession(world, at)
  const input = `call kit__charge with {"id": "${name}", "ms": 600000}`
  const plan = { session, key: name, input, charges: [name], looks: [], lastWords: '', provider: null }
  const turn = await newTurn(world, plan, at)
  const reading = follow(turn.id, {
    kind: 'staying',
    place: (i) => world.replicas[(at + 1 + (i % 2)) % 3]?.url ?? '',
    signal: AbortSignal.timeout(PATIENCE_MS),
  })
  turn.readings.push(reading)
  await eventually(() => world.tools.calls.some(({ args }) => args.id === name))
  return { turn, reading }
}

async function losesItsOwnerOnceMore(t: Test, world: World): Promise<void> {
  const { turn, reading } = await hangingTurn(world, 0, 'fourth')
  await world.database.query('update turn set recoveries = 3 where id = $1', [turn.id])
  // The log goes, and what the first step said with it: no reader may take what comes after for the whole turn.
  const redis = new Redis(world.servers.redis.url)
  await redis.flushall().finally(() => redis.disconnect())
  await world.replicas[0]?.end('SIGKILL')
  await reading.done
  const place = () => world.replicas[2]?.url ?? ''
  const later = follow(turn.id, { kind: 'later', place, signal: AbortSignal.timeout(PATIENCE_MS) })
  await later.done
  t.equal(later.events[0]?.type, 'gap')
  const end = JSON.parse(reading.events.at(-1)?.data ?? '{}')
  // The last event is a gap where its snapshot was taken of the turn after its end.
  const failed = end.type === 'gap' ? end.snapshot.turn : end
  t.match(failed, { error: { code: 'recovery_limit' } })
  if (failed === end) t.equal(end.type, 'turn.failed')
  nothingFound(t, await checkAfterwards(world, turn))
  t.same(await outcomes(world, turn), ['outcome_unknown'])
}

/** Its lease would hold for an hour: only the deadline can end it. */
async function hearsNothing(t: Test, world: World): Promise<void> {
  const { turn, reading } = await hangingTurn(world, 1, 'deaf')
  world.replicas[1]?.signal('SIGSTOP')
  const lease = `update session set lease_until = now() + interval '1 hour' where id = $1`
  await world.database.query(lease, [turn.session])
  turn.isCancelled = true
  // Not at the frozen replica, which would take the request and never answer.
  await request({ replicas: world.replicas.slice(2) }, 'POST', `/v1/turns/${turn.id}/cancel`)
  await reading.done
  t.equal(reading.events.at(-1)?.type, 'turn.cancelled')
  world.replicas[1]?.signal('SIGCONT')
  await world.replicas[1]?.end('SIGTERM')
  nothingFound(t, await checkAfterwards(world, turn))
  t.same(await outcomes(world, turn), ['outcome_unknown'])
}

async function outcomes(world: World, { id }: ChaosTurn): Promise<unknown[]> {
  const { rows } = await world.database.query('select outcome from execution where turn_id = $1', [id])
  return rows.map(({ outcome }) => outcome)
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
