import t from 'tap'
import { createMetrics, METRICS } from '../src/telemetry.ts'

const USAGE = { input_tokens: 10, output_tokens: 7, reasoning_tokens: 2, cached_tokens: 4 }

/** The page's samples as `name{labels}` → value. */
async function samples(metrics: ReturnType<typeof createMetrics>): Promise<Map<string, number>> {
  const lines = (await metrics.text()).split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  return new Map(lines.map((line) => [line.replace(/ [^ ]*$/, ''), Number(line.split(' ').at(-1))]))
}

t.test('the page holds every documented metric with its help, and the metrics of the process', async (t) => {
  const page = await createMetrics().text()
  for (const [name, { kind, help }] of Object.entries(METRICS)) {
    t.ok(page.includes(`# HELP ${name} ${help}\n# TYPE ${name} ${kind}\n`), name)
  }
  t.match(page, /^nodejs_eventloop_lag_p99_seconds /m)
  t.match(page, /^process_resident_memory_bytes /m)
  const own = [...page.matchAll(/^# TYPE (baton_\w+)/gm)].map(([, name]) => name)
  t.same(own.sort(), Object.keys(METRICS).sort(), 'the page holds no other metric of Baton')
})

t.test('each event is counted under its labels, and times are in seconds', async (t) => {
  const metrics = createMetrics({ defaults: false })
  metrics.httpAnswered('POST', '/v1/sessions/:id/turns', 200, 30)
  metrics.streamOpened()
  metrics.streamOpened()
  metrics.streamClosed()
  metrics.turnStarted()
  metrics.turnStarted()
  metrics.turnEnded('completed', 2000)
  metrics.turnQueued(5)
  metrics.stepEnded('made-up', 'tool_calls')
  const call = { provider: 'made-up', model: 'one', outcome: 'ok', ms: 1500, firstEventMs: 400, usage: USAGE }
  metrics.modelCallEnded(call)
  metrics.modelCallEnded({ ...call, outcome: 'upstream_timeout', firstEventMs: null, usage: null })
  metrics.modelRetried('made-up', 'upstream_overloaded')
  metrics.toolEnded('github.search', 'ok', 120)
  metrics.toolEnded('github.clone', 'ok', 90_000)
  metrics.eventsAppended(5)
  metrics.eventsLost(2)
  const found = await samples(metrics)
  const expected: Record<string, number> = {
    'baton_http_requests_total{method="POST",route="/v1/sessions/:id/turns",status="200"}': 1,
    'baton_http_request_seconds_sum{method="POST",route="/v1/sessions/:id/turns"}': 0.03,
    baton_streams_open: 1,
    baton_turns_active: 1,
    'baton_turns_total{state="completed"}': 1,
    'baton_turn_seconds_sum{state="completed"}': 2,
    baton_turn_queue_seconds_sum: 0.005,
    'baton_steps_total{provider="made-up",finish="tool_calls"}': 1,
    'baton_model_calls_total{provider="made-up",model="one",outcome="ok"}': 1,
    'baton_model_calls_total{provider="made-up",model="one",outcome="upstream_timeout"}': 1,
    'baton_model_call_seconds_sum{provider="made-up",model="one"}': 3,
    'baton_model_first_event_seconds_count{provider="made-up",model="one"}': 1,
    'baton_model_tokens_total{provider="made-up",model="one",kind="input"}': 10,
    'baton_model_tokens_total{provider="made-up",model="one",kind="output"}': 7,
    'baton_model_tokens_total{provider="made-up",model="one",kind="cached"}': 4,
    'baton_model_tokens_total{provider="made-up",model="one",kind="reasoning"}': 2,
    'baton_model_retries_total{provider="made-up",code="upstream_overloaded"}': 1,
    'baton_tool_calls_total{tool="github.search",outcome="ok"}': 1,
    'baton_tool_call_seconds_sum{tool="github.search"}': 0.12,
    'baton_tool_call_seconds_bucket{le="60",tool="github.clone"}': 0,
    'baton_tool_call_seconds_bucket{le="120",tool="github.clone"}': 1,
    baton_events_appended_total: 5,
    baton_events_lost_total: 2,
  }
  for (const [name, value] of Object.entries(expected)) t.equal(found.get(name), value, name)
})

t.test('a series that an alarm watches is there before its first event', async (t) => {
  const metrics = createMetrics({ defaults: false })
  const first = await samples(metrics)
  for (const reason of ['lost', 'handed_over'])
    t.equal(first.get(`baton_turns_recovered_total{reason="${reason}"}`), 0, reason)
  for (const state of ['completed', 'failed', 'cancelled', 'running', 'awaiting_input'])
    t.equal(first.get(`baton_turns_total{state="${state}"}`), 0, state)
  t.equal(first.get('baton_events_lost_total'), 0)
  metrics.toolAsked('github.search')
  const asked = await samples(metrics)
  t.equal(asked.get('baton_tool_busy_total{tool="github.search"}'), 0)
  t.equal(asked.get('baton_tool_calls_total{tool="github.search",outcome="outcome_unknown"}'), 0)
  metrics.toolRefused('github.search')
  metrics.toolAsked('github.search')
  t.equal(
    (await samples(metrics)).get('baton_tool_busy_total{tool="github.search"}'),
    1,
    'a series that is there keeps its value',
  )
})

t.test('values that callers invent do not multiply the series', async (t) => {
  const metrics = createMetrics({ defaults: false })
  for (let i = 0; i < 1000; i++) metrics.toolEnded(`server.tool${i}`, 'ok', 1)
  metrics.toolEnded('server.tool0', 'ok', 1)
  const found = [...(await samples(metrics))].filter(([name]) => name.startsWith('baton_tool_calls_total'))
  t.equal(found.length, 101)
  const values = new Map(found)
  t.equal(values.get('baton_tool_calls_total{tool="other",outcome="ok"}'), 900)
  t.equal(values.get('baton_tool_calls_total{tool="server.tool0",outcome="ok"}'), 2)
})

t.test(
  'a model has figures of its own from its first answer on, however many names were made up',
  async (t) => {
    const metrics = createMetrics({ defaults: false })
    const call = { provider: 'acme', model: 'real', outcome: 'ok', ms: 1, firstEventMs: 1, usage: null }
    const failed = { ...call, outcome: 'upstream_rejected', firstEventMs: null }
    for (let i = 0; i < 200; i++) metrics.modelCallEnded({ ...failed, model: `made-up-${i}` })
    metrics.modelCallEnded(failed)
    metrics.modelCallEnded(call)
    metrics.modelCallEnded(failed)
    const found = [...(await samples(metrics))].filter(([name]) => name.startsWith('baton_model_calls_total'))
    t.strictSame(Object.fromEntries(found), {
      'baton_model_calls_total{provider="acme",model="other",outcome="upstream_rejected"}': 201,
      'baton_model_calls_total{provider="acme",model="real",outcome="ok"}': 1,
      'baton_model_calls_total{provider="acme",model="real",outcome="upstream_rejected"}': 1,
    })
  },
)

t.test('two sets of metrics do not share a registry', async (t) => {
  const [a, b] = [createMetrics({ defaults: false }), createMetrics({ defaults: false })]
  a.turnStarted()
  t.equal((await samples(a)).get('baton_turns_active'), 1)
  t.equal((await samples(b)).get('baton_turns_active'), 0)
  t.match(a.contentType, 'text/plain')
})
