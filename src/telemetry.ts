/**
 * Metrics for Prometheus. They are data (METRICS), so that the documentation can be checked against them; labels that
 * callers can invent values for are bounded.
 */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { NO_USAGE, type Usage } from './chat/message.ts'

interface Spec {
  kind: 'counter' | 'gauge' | 'histogram'
  help: string
  labels: readonly string[]
  /** Upper bounds of a histogram, in its unit */
  buckets?: readonly number[]
}

const SHORT = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30]
const LONG = [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640]

/** Every metric of Baton's own; prom-client's defaults (`process_*`, `nodejs_*`, event-loop lag) stand beside them. */
export const METRICS = {
  baton_http_requests_total: {
    kind: 'counter',
    help: 'HTTP requests answered, by route pattern.',
    labels: ['method', 'route', 'status'],
  },
  baton_http_request_seconds: {
    kind: 'histogram',
    help: 'From a request to the head of its response, so that a stream counts until it starts.',
    labels: ['method', 'route'],
    buckets: SHORT,
  },
  baton_streams_open: { kind: 'gauge', help: 'Event streams that clients have open.', labels: [] },
  baton_turns_active: { kind: 'gauge', help: 'Turns that this process runs.', labels: [] },
  baton_turns_total: { kind: 'counter', help: 'Turns that this process let go of.', labels: ['state'] },
  baton_turn_seconds: {
    kind: 'histogram',
    help: 'How long this process ran a turn.',
    labels: ['state'],
    buckets: LONG,
  },
  baton_turn_queue_seconds: {
    kind: 'histogram',
    help: 'How long a turn waited for a free slot in this process.',
    labels: [],
    buckets: SHORT,
  },
  baton_turns_recovered_total: {
    kind: 'counter',
    help: 'Turns that this process took over: `lost` by an owner that fell silent, or `handed_over`: given away by a drain or for want of a key, or taken for a cancel.',
    labels: ['reason'],
  },
  baton_steps_total: {
    kind: 'counter',
    help: 'Committed steps, by how the model ended them.',
    labels: ['provider', 'finish'],
  },
  baton_model_calls_total: {
    kind: 'counter',
    help: 'Model calls: `ok`, `cancelled`, or the code of the error.',
    labels: ['provider', 'model', 'outcome'],
  },
  baton_model_call_seconds: {
    kind: 'histogram',
    help: 'A model call from its first attempt to its end.',
    labels: ['provider', 'model'],
    buckets: LONG,
  },
  baton_model_first_event_seconds: {
    kind: 'histogram',
    help: 'A model call from its first attempt to its first event.',
    labels: ['provider', 'model'],
    buckets: LONG,
  },
  baton_model_retries_total: {
    kind: 'counter',
    help: 'Attempts of model calls that were made again, by the failure before.',
    labels: ['provider', 'code'],
  },
  baton_model_tokens_total: {
    kind: 'counter',
    help: 'Tokens as providers report them; `cached` is part of `input`, `reasoning` of `output`.',
    labels: ['provider', 'model', 'kind'],
  },
  baton_tool_calls_total: {
    kind: 'counter',
    help: 'Settled tool calls.',
    labels: ['tool', 'outcome'],
  },
  baton_tool_call_seconds: {
    kind: 'histogram',
    help: 'A tool call from its start to its settlement.',
    labels: ['tool'],
    buckets: SHORT,
  },
  baton_tools_running: { kind: 'gauge', help: 'Tool calls that hold a place in this process.', labels: [] },
  baton_tools_waiting: {
    kind: 'gauge',
    help: 'Tool calls of this process that wait for a place.',
    labels: [],
  },
  baton_tool_wait_seconds: {
    kind: 'histogram',
    help: 'How long a tool call waited for its place.',
    labels: ['tool'],
    buckets: SHORT,
  },
  baton_tool_busy_total: {
    kind: 'counter',
    help: 'Tool calls that found no place in time and were not sent.',
    labels: ['tool'],
  },
  baton_events_appended_total: { kind: 'counter', help: 'Events put into session logs.', labels: [] },
  baton_events_lost_total: {
    kind: 'counter',
    help: 'Events that the bus refused; their readers get a gap.',
    labels: [],
  },
} as const satisfies Record<string, Spec>

type MetricName = keyof typeof METRICS

/** One finished model call; milliseconds. `firstEventMs` is null when none came. */
export interface ModelCallRecord {
  provider: string
  model: string
  outcome: string
  ms: number
  firstEventMs: number | null
  usage: Usage | null
}

export interface Metrics {
  readonly contentType: string
  /** The page for `GET /metrics`. */
  text(): Promise<string>
  /** `route` is the pattern (`/v1/turns/:id`), never the path. */
  httpAnswered(method: string, route: string, status: number, ms: number): void
  streamOpened(): void
  streamClosed(): void
  turnStarted(): void
  turnEnded(state: string, ms: number): void
  /** It got its slot after `ms`. */
  turnQueued(ms: number): void
  turnRecovered(reason: 'handed_over' | 'lost'): void
  stepEnded(provider: string, finish: string): void
  modelCallEnded(call: ModelCallRecord): void
  modelRetried(provider: string, code: string): void
  /** `ms` is null for a call that was settled without a run. */
  toolEnded(tool: string, outcome: string, ms: number | null): void
  /** A call wants a place. */
  toolAsked(tool: string): void
  /** It got it after `ms`. */
  toolEntered(tool: string, ms: number): void
  toolLeft(): void
  /** One more call waits for a place (1), or one less (-1). */
  toolWaits(change: 1 | -1): void
  toolRefused(tool: string): void
  eventsAppended(count: number): void
  eventsLost(count: number): void
}

/** What a turn is when its process lets it go */
const LET_GO = ['completed', 'failed', 'cancelled', 'running', 'awaiting_input']

/** Distinct values that a label with invented values may take; the rest are counted as `other`. */
const MOST_VALUES = 100

/** `defaults: false` leaves the process's own metrics out, which watch the garbage collector. */
export function createMetrics({ defaults = true } = {}): Metrics {
  const registry = new Registry()
  if (defaults) collectDefaultMetrics({ register: registry })
  const { counter, gauge, histogram } = register(registry)
  const model = bounded()
  const tool = bounded()
  // Prometheus sees no increase in a series that begins at one: those that alarms watch are there before.
  for (const reason of ['lost', 'handed_over']) counter('baton_turns_recovered_total').inc({ reason }, 0)
  for (const state of LET_GO) counter('baton_turns_total').inc({ state }, 0)
  return {
    contentType: registry.contentType,
    text: () => registry.metrics(),
    httpAnswered(method, route, status, ms) {
      counter('baton_http_requests_total').inc({ method, route, status })
      histogram('baton_http_request_seconds').observe({ method, route }, ms / 1000)
    },
    streamOpened: () => gauge('baton_streams_open').inc(),
    streamClosed: () => gauge('baton_streams_open').dec(),
    turnStarted: () => gauge('baton_turns_active').inc(),
    turnEnded(state, ms) {
      gauge('baton_turns_active').dec()
      counter('baton_turns_total').inc({ state })
      histogram('baton_turn_seconds').observe({ state }, ms / 1000)
    },
    turnQueued: (ms) => histogram('baton_turn_queue_seconds').observe(ms / 1000),
    turnRecovered: (reason) => counter('baton_turns_recovered_total').inc({ reason }),
    stepEnded: (provider, finish) => counter('baton_steps_total').inc({ provider, finish }),
    modelCallEnded(call) {
      const labels = { provider: call.provider, model: model(call.model) }
      counter('baton_model_calls_total').inc({ ...labels, outcome: call.outcome })
      histogram('baton_model_call_seconds').observe(labels, call.ms / 1000)
      if (call.firstEventMs !== null) {
        histogram('baton_model_first_event_seconds').observe(labels, call.firstEventMs / 1000)
      }
      const { input_tokens, output_tokens, cached_tokens, reasoning_tokens } = call.usage ?? NO_USAGE
      const tokens = counter('baton_model_tokens_total')
      tokens.inc({ ...labels, kind: 'input' }, input_tokens)
      tokens.inc({ ...labels, kind: 'output' }, output_tokens)
      tokens.inc({ ...labels, kind: 'cached' }, cached_tokens)
      tokens.inc({ ...labels, kind: 'reasoning' }, reasoning_tokens)
    },
    modelRetried: (provider, code) => counter('baton_model_retries_total').inc({ provider, code }),
    toolEnded(name, outcome, ms) {
      const label = tool(name)
      counter('baton_tool_calls_total').inc({ tool: label, outcome })
      if (ms !== null) histogram('baton_tool_call_seconds').observe({ tool: label }, ms / 1000)
    },
    toolAsked(name) {
      const label = tool(name)
      counter('baton_tool_busy_total').inc({ tool: label }, 0)
      counter('baton_tool_calls_total').inc({ tool: label, outcome: 'outcome_unknown' }, 0)
    },
    toolEntered(name, ms) {
      const label = tool(name)
      gauge('baton_tools_running').inc()
      histogram('baton_tool_wait_seconds').observe({ tool: label }, ms / 1000)
    },
    toolLeft: () => gauge('baton_tools_running').dec(),
    toolWaits: (change) => gauge('baton_tools_waiting').inc(change),
    toolRefused: (name) => counter('baton_tool_busy_total').inc({ tool: tool(name) }),
    eventsAppended: (count) => counter('baton_events_appended_total').inc(count),
    eventsLost: (count) => counter('baton_events_lost_total').inc(count),
  }
}

/** Makes every metric of METRICS; the accessors only take names of their kind. */
function register(registry: Registry) {
  const made = new Map<string, Counter | Gauge | Histogram>()
  for (const [name, spec] of Object.entries<Spec>(METRICS)) {
    const config = { name, help: spec.help, labelNames: [...spec.labels], registers: [registry] }
    if (spec.kind === 'counter') made.set(name, new Counter(config))
    else if (spec.kind === 'gauge') made.set(name, new Gauge(config))
    else made.set(name, new Histogram({ ...config, buckets: [...(spec.buckets ?? SHORT)] }))
  }
  return {
    counter: (name: NameOf<'counter'>) => made.get(name) as Counter,
    gauge: (name: NameOf<'gauge'>) => made.get(name) as Gauge,
    histogram: (name: NameOf<'histogram'>) => made.get(name) as Histogram,
  }
}
type NameOf<K extends Spec['kind']> = {
  [N in MetricName]: (typeof METRICS)[N]['kind'] extends K ? N : never
}[MetricName]

function bounded(): (value: string) => string {
  const known = new Set<string>()
  return (value) => {
    if (known.has(value)) return value
    if (known.size >= MOST_VALUES) return 'other'
    known.add(value)
    return value
  }
}
