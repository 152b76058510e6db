/** Turns from the outside (api.md section 4), one part after the other through the same gateway. */
import t from 'tap'
import { everyBackend } from './harness.ts'
import { answers, maxSteps } from './turns-answers.ts'
import { approvals } from './turns-approvals.ts'
import { busySessions, contextEdits, idempotency } from './turns-starting.ts'
import { cancelling, restarting } from './turns-steering.ts'

await everyBackend(t, async (t, world) => {
  // This part comes first: it checks that no vendor was asked before.
  await t.test('how a turn answers', (t) => answers(t, world))
  await t.test('max_steps', (t) => maxSteps(t, world))
  await t.test('a busy session', (t) => busySessions(t, world))
  await t.test('Idempotency-Key', (t) => idempotency(t, world))
  await t.test('context edits', (t) => contextEdits(t, world))
  await t.test('cancelling', (t) => cancelling(t, world))
  await t.test('restarting', (t) => restarting(t, world))
  await t.test('approvals', (t) => approvals(t, world))
})
