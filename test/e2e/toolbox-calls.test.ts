/** The operator's rules for calls in a running gateway (docs/toolbox.md): limits, approvals, the ledger. */
import t from 'tap'
import { CHILD, ended } from '../mcp/processes.ts'
import { eventually } from '../waiting.ts'
import { type Json, ofType } from './client.ts'
import { BACKEND, everyBackend, openWorld } from './harness.ts'
import { untilCancelled } from './held-turns.ts'
import { type TestTool, textResult } from './tool-server.ts'
import { DYNAMIC, mcp, served } from './toolbox.ts'

/**
 * Tools that count how many calls run at once: of each tool, and of all of them together. No call ends before as many
 * as are allowed have run at once; on a slow machine they would hardly meet otherwise.
 */
function counters(ms: number, allowed: number) {
  const count = () => ({ now: 0, most: 0, all: 0 })
  const together = count()
  const enter = (state: ReturnType<typeof count>) => {
    state.all++
    state.most = Math.max(state.most, ++state.now)
  }
  const counter = () => {
    const state = count()
    const tool: TestTool = {
      async run() {
        for (const one of [state, together]) enter(one)
        await eventually(() => together.most >= allowed)
        await new Promise((resolve) => setTimeout(resolve, ms))
        for (const one of [state, together]) one.now--
        return textResult('done')
      },
    }
    return { state, tool }
  }
  return { together, narrow: counter(), wide: counter() }
}

await everyBackend(
  t,
  async (t, world) => {
    const { narrow, wide, together } = counters(25, 3)
    const server = await served(t, { narrow: narrow.tool, wide: wide.tool })
    const { id } = await world.api.post('/v1/connectors', {
      name: 'busy',
      transport: 'streamable_http',
      url: server.url,
      default_tool_config: { max_instances: 3 },
    })
    const replicas = [world.api, ...(world.backend === 'servers' ? [await world.another()] : [])]
    await t.test('twenty sessions at once exceed neither a tool’s limit nor the toolbox’s', async (t) => {
      const sessions = await Promise.all(
        Array.from({ length: 20 }, () => world.session('openai key', { connectors: [id] })),
      )
      const turns = await Promise.all(
        sessions.map((session, i) =>
          replicas[i % replicas.length]?.post(`/v1/sessions/${session}/turns`, {
            input: 'call busy__narrow with {}\ncall busy__wide with {}',
            stream: false,
          }),
        ),
      )
      t.same(
        turns.filter((turn) => turn.output_text !== 'The tools answered: done | done'),
        [],
        'every call has run',
      )
      t.equal(together.all, 40)
      t.equal(narrow.state.most, 1, 'the limit that is configured by name')
      t.ok(
        wide.state.most <= 3 && wide.state.most > 1,
        `the limit that is the connector’s default: ${wide.state.most}`,
      )
      t.equal(together.most, 3, 'the limit of max_concurrent')
      const page = await (await fetch(`${world.api.url}/metrics`)).text()
      t.match(page, /^baton_tools_running 0$/m)
      t.match(page, /^baton_tools_waiting 0$/m)
      t.match(page, /^baton_tool_wait_seconds_count\{tool="busy\.narrow"\} [1-9]/m)
    })
  },
  {
    yaml: 'toolbox: {max_concurrent: 3, tools: [{name: busy.narrow, max_instances: 1}]}\n',
    env: { BATON_TOOL_WAIT_SECONDS: '100' },
  },
)

t.test('timeouts and cancellations reach the server, and progress stretches a call', async (t) => {
  const heard: string[] = []
  const never: TestTool['run'] = (call) =>
    untilCancelled(call).finally(() => heard.push(String(call.args.as)))
  const server = await served(t, {
    hang: { run: never },
    safe: { run: never, annotations: { readOnlyHint: true } },
    stretch: {
      async run({ progress }) {
        for (let i = 1; i <= 8; i++) {
          progress(i, 8)
          await new Promise((resolve) => setTimeout(resolve, 200))
        }
        return textResult('at last')
      },
    },
  })
  const yaml = `toolbox:
  tools: [{name: hang, timeout: PT0.4S}, {name: slow.safe, timeout: PT0.4S}, {name: slow.stretch, timeout: PT1S}]
  mcps:\n${mcp('slow', server.url, 'mode: strict')}`
  const world = await openWorld(t, BACKEND, { yaml })
  const session = await world.session('gemini key')
  await world.run(session, 'call slow__hang with {"as": "unsafe"}\ncall slow__safe with {"as": "safe"}')
  const results = (await world.messages(session)).find(({ role }) => role === 'tool')
  t.match(results.parts, [
    { outcome: 'outcome_unknown', content: [{ text: /within 0\.4 s.*not known/ }] },
    { outcome: 'error', content: [{ text: /safe to call again/ }] },
  ])
  const told = (count: number) => eventually(() => heard.length === count)
  await told(2)
  t.same([...heard].sort(), ['safe', 'unsafe'], 'a timeout is told to the server')
  t.match(await world.run(session, 'call slow__stretch with {}'), {
    output_text: 'The tools answered: at last',
  })
  const stream = await world.api.turn(session, 'call slow__hang with {"as": "cancelled"}')
  await server.called('hang', 2)
  await world.api.post(`/v1/turns/${stream.turn}/cancel?wait=true`)
  await told(3)
  t.equal(heard.at(-1), 'cancelled', 'a cancellation is told to the server, too')
})

t.test('the process of a connector ends when the connector is changed or deleted', async (t) => {
  const world = await openWorld(t, BACKEND, { env: { BATON_ALLOW_STDIO_CONNECTORS: 'true' } })
  const args = [CHILD]
  const body = { name: 'child', transport: 'stdio', command: process.execPath, args }
  const { id } = await world.api.post('/v1/connectors', body)
  const session = await world.session('openai key', { connectors: ['child'] })
  const pid = async () =>
    Number(/\d+/.exec((await world.run(session, 'call child__pid with {}')).output_text)?.[0])
  const first = await pid()
  await world.api.patch(`/v1/connectors/${id}`, { args: [...args, 'good'] })
  await ended(first)
  const second = await pid()
  t.doesNotThrow(() => process.kill(second, 0), 'the second process runs')
  await world.api.delete(`/v1/connectors/${id}`)
  await ended(second)
})

t.test('a caller’s program is started no more once the operator allows none', async (t) => {
  const config = { allowStdioConnectors: true }
  const world = await openWorld(t, BACKEND, { config })
  const body = { name: 'child', transport: 'stdio', command: process.execPath, args: [CHILD] }
  const { id } = await world.api.post('/v1/connectors', body)
  const session = await world.session('openai key', { connectors: ['child'] })
  t.match(await world.run(session, 'call child__pid with {}'), { output_text: /\d/ })
  config.allowStdioConnectors = false
  await world.restart()
  const refused = { ok: false, error: /BATON_ALLOW_STDIO_CONNECTORS/ }
  t.match(await world.api.post(`/v1/connectors/${id}/test`), refused)
  const words = /no tool child__pid|BATON_ALLOW_STDIO_CONNECTORS/
  t.match(await world.run(session, 'call child__pid with {}'), { output_text: words })
  await world.api.delete(`/v1/connectors/${id}`)
})

// ---------------------------------------------------------------- approvals

t.test('approvals by rule', async (t) => {
  const yaml = 'toolbox: {tools: [{name: guarded.trusted, require_approval: never}]}\n'
  const world = await openWorld(t, BACKEND, { yaml })
  const server = await served(t, {
    wipe: {
      inputSchema: { type: 'object', properties: { disk: { type: 'integer' } }, required: ['disk'] },
    },
    look: { annotations: { readOnlyHint: true } },
    trusted: {},
  })
  const { id } = await world.api.post('/v1/connectors', {
    name: 'guarded',
    transport: 'streamable_http',
    url: server.url,
    require_approval: 'destructive',
    trust_annotations: true,
  })
  const waiting = async (input: string) => {
    const session = await world.session('anthropic key', { connectors: [id] })
    const turn = await world.run(session, input)
    t.equal(turn.state, 'awaiting_input')
    const { data } = await world.api.get(`/v1/tool-executions?turn_id=${turn.id}`)
    const call = data.find(({ state }: Json) => state === 'awaiting_approval')
    return { session, turn, call, path: `/v1/turns/${turn.id}/approvals/${call.call_id}` }
  }

  await t.test('only a tool that may destroy waits, unless its own setting says otherwise', async (t) => {
    const { turn, path } = await waiting(
      'call guarded__look with {}\ncall guarded__trusted with {}\ncall guarded__wipe with {"disk": 7}',
    )
    t.same(server.calls.map(({ tool }) => tool).sort(), ['look', 'trusted'])
    await world.api.post(path, { decision: 'deny', reason: 'disk 7 is in use' })
    const done = await world.api.get(`/v1/turns/${turn.id}?wait=60`)
    t.match(done.output_text, /disk 7 is in use/, 'the model sees the reason')
    t.equal(server.count('wipe'), 0)
  })

  await t.test('a call that is approved with edits after a restart runs once, as edited', async (t) => {
    const { session, turn, call, path } = await waiting('call guarded__wipe with {"disk": 1}')
    await world.restart()
    const before = server.count('wipe')
    const misfit = await world.api.call('POST', path, { decision: 'approve', arguments: { disk: 'all' } })
    t.match([misfit.status, misfit.body.error], [400, { code: 'invalid_request', param: 'arguments' }])
    t.match(misfit.body.error.message, /disk/)
    t.equal((await world.api.get(`/v1/turns/${turn.id}`)).state, 'awaiting_input', 'the turn still waits')
    await world.api.post(path, { decision: 'approve', arguments: { disk: 2 } })
    t.match(await world.api.get(`/v1/turns/${turn.id}?wait=60`), { state: 'completed' })
    t.equal(server.count('wipe') - before, 1)
    t.strictSame(server.calls.at(-1), { tool: 'wipe', args: { disk: 2 } })
    t.match(await world.api.get(`/v1/tool-executions/${call.id}`), {
      arguments: { disk: 2 },
      approved_by: 'local',
      outcome: 'ok',
    })
    t.match((await world.messages(session))[1].parts.at(-1), { type: 'tool_call', arguments: { disk: 1 } })
  })
})

t.test('an approval that nobody gives expires, and old calls leave the ledger', async (t) => {
  const server = await served(t, { wipe: {} })
  const yaml = `toolbox:\n  mcps:\n${mcp('guarded', server.url, `${DYNAMIC}, require_approval: always`)}`
  const env = { BATON_APPROVAL_SECONDS: '1', BATON_LEASE_SECONDS: '1', BATON_LEDGER_RETENTION: 'PT0.001S' }
  const world = await openWorld(t, BACKEND, { yaml, env })
  const session = await world.session('openai key')
  const stream = await world.api.turn(session, 'call guarded__wipe with {}')
  const frames = await stream.done
  t.ok(ofType(frames, 'approval.required').length > 0)
  t.equal(ofType(frames, 'turn.completed').length, 1)
  const results = (await world.messages(session)).find(({ role }) => role === 'tool')
  t.match(results.parts, [{ outcome: 'denied', content: [{ text: /nobody approved it in time/ }] }])
  t.equal(server.count('wipe'), 0)
  t.match((await world.api.get('/v1/tool-executions/stats')).data, [{ key: 'guarded.wipe', count: 1 }])
  await world.restart()
  await eventually(
    () => world.api.get('/v1/tool-executions'),
    ({ data }) => data.length === 0,
  )
  t.equal((await world.messages(session)).length, 4, 'the conversation stays')
})
