/**
 * Metrics for Prometheus. They are data (METRICS), so that the documentation can be checked against them; labels that
 * callers can invent values for are bounded.
 */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { NO_USAGE, type Usage } from './chat/message.ts'

/** Mostly milliseconds, but minutes if a request waits for its turn, a turn for its slot, or a tool is slow */
const SHORT = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600]
const LONG = [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640]

const counter = (help: string, ...labels: string[]) => ({ kind: 'counter' as const, help, labels })
const gauge = (help: string) => ({ kind: 'gauge' as const, help, labels: [] })
/** `buckets`: their upper bounds, in seconds */
const histogram = (help: string, buckets: number[], ...labels: string[]) => ({
  kind: 'histogram' as const,
  help,
  labels,
  buckets,
})

/** Every metric of Baton's own; prom-client's defaults (`process_*`, `nodejs_*`, event-loop lag) come in addition. */
export const METRICS = {
  baton_http_requests_total: counter(
    'HTTP requests answered, by route pattern.',
    'method',
    'route',
    'status',
  ),
  baton_http_request_seconds: histogram(
    'From a request to the head of its response, so that a stream counts until it starts.',
    SHORT,
    'method',
    'route',
  ),
  baton_streams_open: gauge('Event streams that clients have open.'),
  baton_turns_active: gauge('Turns that this process runs.'),
  baton_turns_total: counter('Turns that this process let go of.', 'state'),
  baton_turn_seconds: histogram('How long this process ran a turn.', LONG, 'state'),
  baton_turn_queue_seconds: histogram('How long a turn waited for a free slot in this process.', SHORT),
  baton_turns_recovered_total: counter(
    'Turns that this process took over: `lost` by an owner that fell silent, or `handed_over`: given away by a drain or for want of a key, or taken for a cancel.',
    'reason',
  ),
  baton_steps_total: counter('Committed steps, by how the model ended them.', 'provider', 'finish'),
  baton_model_calls_total: counter(
    'Model calls: `ok`, `cancelled`, or the code of the error.',
    'provider',
    'model',
    'outcome',
  ),
  baton_model_call_seconds: histogram(
    'A model call from its first attempt to its end.',
    LONG,
    'provider',
    'model',
  ),
  baton_model_first_event_seconds: histogram(
    'A model call from its first attempt to its first event.',
    LONG,
    'provider',
    'model',
  ),
  baton_model_retries_total: counter(
    'Attempts of model calls that were made again, by the failure before.',
    'provider',
    'code',
  ),
  baton_model_tokens_total: counter(
    'Tokens as providers report them; `cached` is part of `input`, `reasoning` of `output`.',
    'provider',
    'model',
    'kind',
  ),
  baton_tool_calls_total: counter('Settled tool calls.', 'tool', 'outcome'),
  baton_tool_call_seconds: histogram(
    'A tool call from its start to its settlement, with its wait for a slot.',
    SHORT,
    'tool',
  ),
  baton_tools_running: gauge('Tool calls that hold a slot in this process.'),
  baton_tools_waiting: gauge('Tool calls of this process that wait for a slot.'),
  baton_tool_wait_seconds: histogram('How long a tool call waited for its slot.', SHORT, 'tool'),
  baton_tool_busy_total: counter('Tool calls that found no slot in time and were not sent.', 'tool'),
  baton_events_appended_total: counter('Events put into session logs.'),
  baton_events_lost_total: counter('Events that the bus refused; their readers get a gap.'),
}

/** One finished model call; milliseconds. `firstEventMs` is null when none came. */
export interface ModelCallRecord {
  provider: string
  model: string
  outcome: string
  ms: number
  firstEventMs: number | null
  usage: Usage | null
}

export type Metrics = ReturnType<typeof createMetrics>

/** The states in which a process may let go of a turn */
const LET_GO = ['completed', 'failed', 'cancelled', 'running', 'awaiting_input']

/** Distinct values that a label with invented values may take; the rest are counted as `other`. */
const MOST_VALUES = 100

/** `defaults: false` leaves the process's own metrics out, which watch the garbage collector. */
export function createMetrics({ defaults = true } = {}) {
  const registry = new Registry()
  if (defaults) collectDefaultMetrics({ register: registry })
  const made = register(registry)
  const model = bounded()
  const tool = bounded()
  // Prometheus sees no increase in a series that begins at one: series that alarms watch begin here, at zero.
  for (const reason of ['lost', 'handed_over']) made.baton_turns_recovered_total.inc({ reason }, 0)
  for (const state of LET_GO) made.baton_turns_total.inc({ state }, 0)
  return {
    contentType: registry.contentType,
    /** The page for `GET /metrics`. */
    text: () => registry.metrics(),
    /** `route` is the pattern (`/v1/turns/:id`), never the path. */
    httpAnswered(method: string, route: string, status: number, ms: number) {
      made.baton_http_requests_total.inc({ method, route, status })
      made.baton_http_request_seconds.observe({ method, route }, ms / 1000)
    },
    streamOpened: () => made.baton_streams_open.inc(),
    streamClosed: () => made.baton_streams_open.dec(),
    turnStarted: () => made.baton_turns_active.inc(),
    turnEnded(state: string, ms: number) {
      made.baton_turns_active.dec()
      made.baton_turns_total.inc({ state })
      made.baton_turn_seconds.observe({ state }, ms / 1000)
    },
    /** A turn got its slot after `ms`. */
    turnQueued: (ms: number) => made.baton_turn_queue_seconds.observe(ms / 1000),
    turnRecovered: (reason: 'handed_over' | 'lost') => made.baton_turns_recovered_total.inc({ reason }),
    stepEnded: (provider: string, finish: string) => made.baton_steps_total.inc({ provider, finish }),
    modelCallEnded(call: ModelCallRecord) {
      // A name that a caller made up never answers, and so takes no value from the models that do.
      const labels = { provider: call.provider, model: model(call.model, call.firstEventMs !== null) }
      made.baton_model_calls_total.inc({ ...labels, outcome: call.outcome })
      made.baton_model_call_seconds.observe(labels, call.ms / 1000)
      if (call.firstEventMs !== null) {
        made.baton_model_first_event_seconds.observe(labels, call.firstEventMs / 1000)
      }
      const { input_tokens, output_tokens, cached_tokens, reasoning_tokens } = call.usage ?? NO_USAGE
      const tokens = made.baton_model_tokens_total
      tokens.inc({ ...labels, kind: 'input' }, input_tokens)
      tokens.inc({ ...labels, kind: 'output' }, output_tokens)
      tokens.inc({ ...labels, kind: 'cached' }, cached_tokens)
      tokens.inc({ ...labels, kind: 'reasoning' }, reasoning_tokens)
    },
    modelRetried: (provider: string, code: string) => made.baton_model_retries_total.inc({ provider, code }),
    /** `ms` is null for a call that was settled without a run. */
    toolEnded(name: string, outcome: string, ms: number | null) {
      const label = tool(name)
      made.baton_tool_calls_total.inc({ tool: label, outcome })
      if (ms !== null) made.baton_tool_call_seconds.observe({ tool: label }, ms / 1000)
    },
    /** A call wants a slot. */
    toolAsked(name: string) {
      const label = tool(name)
      made.baton_tool_busy_total.inc({ tool: label }, 0)
      made.baton_tool_calls_total.inc({ tool: label, outcome: 'outcome_unknown' }, 0)
    },
    /** The call got its slot after `ms`. */
    toolEntered(name: string, ms: number) {
      const label = tool(name)
      made.baton_tools_running.inc()
      made.baton_tool_wait_seconds.observe({ tool: label }, ms / 1000)
    },
    toolLeft: () => made.baton_tools_running.dec(),
    /** One more call waits for a slot (1), or one less (-1). */
    toolWaits: (change: 1 | -1) => made.baton_tools_waiting.inc(change),
    toolRefused: (name: string) => made.baton_tool_busy_total.inc({ tool: tool(name) }),
    eventsAppended: (count: number) => made.baton_events_appended_total.inc(count),
    eventsLost: (count: number) => made.baton_events_lost_total.inc(count),
  }
}

const KINDS = { counter: Counter, gauge: Gauge, histogram: Histogram }
type Made = { [Name in keyof typeof METRICS]: InstanceType<(typeof KINDS)[(typeof METRICS)[Name]['kind']]> }

function register(registry: Registry): Made {
  const made = Object.entries(METRICS).map(([name, { kind, labels, ...spec }]) => {
    const metric = new KINDS[kind]({ name, ...spec, labelNames: labels, registers: [registry] })
    return [name, metric]
  })
  return Object.fromEntries(made)
}

/** `isReal`: the value may become one of the label's. */
function bounded(): (value: string, isReal?: boolean) => string {
  const known = new Set<string>()
  return (value, isReal = true) => {
    if (known.has(value)) return value
    if (known.size >= MOST_VALUES || !isReal) return 'other'
    known.add(value)
    return value
  }
}
