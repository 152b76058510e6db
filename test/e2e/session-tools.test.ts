/** The tools of a session from the outside (api.md "Session tools"), one part after the other through the same gateway. */
import t from 'tap'
import { BACKEND, everyBackend } from './harness.ts'
import { badCalls } from './session-tools-bad-calls.ts'
import { badCompany, calledBlindly, comingAndGoing } from './session-tools-bound.ts'
import { applyNow, duringTools } from './session-tools-now.ts'
import { declarations, hundreds, longResults, servers } from './session-tools-shown.ts'

await everyBackend(t, async (t, world) => {
  await t.test('tools that come and go', (t) => comingAndGoing(t, world))
  await t.test('calls that Gemini finds unexpected', (t) => calledBlindly(t, world))
  // This part waits out the budgets for servers, which do not depend on the store.
  if (world.backend === BACKEND) await t.test('bad company', (t) => badCompany(t, world))
  await t.test('bad calls', (t) => badCalls(t, world))
  await t.test('declarations', (t) => declarations(t, world))
  await t.test('results that are too long', (t) => longResults(t, world))
  await t.test('hundreds of tools', (t) => hundreds(t, world))
  await t.test('servers', (t) => servers(t, world))
  await t.test('apply: now', async (t) => {
    world.emulators.gemini.unexpected.splice(0)
    await applyNow(t, world)
    t.strictSame(world.emulators.gemini.unexpected, [], 'no restarted model was without the tool')
  })
  await t.test('while tools run', (t) => duringTools(t, world))
})
