/** The ledger of tool calls. */
import { Type } from 'typebox'
import { BatonError } from '../src/errors.ts'
import type { ShownExecution } from '../src/store/store.ts'
import { outputSlice } from '../src/tools/results.ts'
import type { App, RouteDeps } from './app.ts'
import {
  Count,
  closed,
  Flag,
  Id,
  IdParam,
  Instant,
  Json,
  listOf,
  nullable,
  Outcome,
  pageOf,
  paging,
  shownBy,
  text,
} from './schemas.ts'

const started = (when: string) =>
  Type.String({
    format: 'date-time',
    description: `Calls that started then or ${when}. A call that has not started counts by when it was asked for`,
  })
const filters = {
  session_id: Type.Optional(text(1, 512)),
  turn_id: Type.Optional(text(1, 512)),
  tool: Type.Optional(text(1, 512)),
  outcome: Type.Optional(Outcome),
  since: Type.Optional(started('later')),
  until: Type.Optional(started('earlier')),
}
const Filter = Type.Object({ ...filters, ...paging }, closed)
const Grouping = Type.Object(
  { ...filters, group_by: Type.Optional(Type.Enum(['tool', 'connector', 'session'])) },
  closed,
)
const Slice = Type.Object(
  {
    path: Type.Optional(
      Type.String({ maxLength: 4096, description: 'JSON Pointer into a structured result' }),
    ),
    offset: Type.Optional(Type.Integer({ minimum: 0, maximum: 2 ** 40, description: 'In bytes' })),
    limit: Type.Optional(
      Type.Integer({ minimum: 1, maximum: 2 ** 20, description: 'In bytes; default 65536' }),
    ),
  },
  closed,
)
const ExecutionView = Type.Object(
  {
    id: Id,
    session_id: Id,
    turn_id: Id,
    step: Count,
    call_id: Type.String(),
    tool: Type.String(),
    connector: nullable(Type.String()),
    tools_revision: Count,
    arguments: Json,
    state: Type.Enum(['awaiting_approval', 'decided', 'started', 'settled'], {
      description:
        '`decided`: waits for no approval any more; goes on once all calls of its turn are decided',
    }),
    outcome: nullable(Outcome),
    is_error: nullable(Flag),
    error: nullable(Type.String()),
    started_at: nullable(Instant),
    ended_at: nullable(Instant),
    duration_ms: nullable(Type.Number()),
    bytes: nullable(Type.Integer({ minimum: 0, description: 'Of the output, as it is stored' })),
    approved_by: nullable(Type.String({ description: 'Null also if the call was denied' })),
  },
  { title: 'ToolExecution' },
)
const Output = Type.Object(
  {
    exec_id: Id,
    path: Type.String(),
    offset: Count,
    limit: Count,
    total_bytes: Count,
    next_offset: nullable(Count),
    content: Type.String(),
  },
  { title: 'ToolOutput' },
)
const Stats = Type.Object({
  data: Type.Array(
    Type.Object({
      key: Type.String(),
      count: Count,
      failures: Count,
      p50_ms: Type.Number(),
      p95_ms: Type.Number(),
      max_ms: Type.Number(),
    }),
  ),
})

/**
 * A decided call's row stays `awaiting_approval` until its turn goes on; people who look for calls to decide must not
 * find it.
 */
const shown = (row: ShownExecution) => {
  const isDecided = row.state === 'awaiting_approval' && row.approval !== null
  return shownBy(ExecutionView, isDecided ? { ...row, state: 'decided' } : row)
}

export function toolExecutionRoutes(app: App, { store }: RouteDeps): void {
  app.get(
    '/tool-executions',
    {
      schema: {
        operationId: 'listToolExecutions',
        summary: 'The ledger of tool calls',
        querystring: Filter,
        response: { 200: listOf(ExecutionView) },
      },
    },
    async (request) => {
      const page = await store.executions.list(request.caller, request.query, pageOf(request.query))
      return { data: page.data.map(shown), next_cursor: page.next_cursor }
    },
  )
  app.get(
    '/tool-executions/stats',
    {
      schema: {
        operationId: 'getToolExecutionStats',
        summary: 'Counts and durations',
        description:
          'Of the 1,000 tools, connectors or sessions with the most calls. By connector, calls of built-in tools count under `builtin`; calls of a tool that is not there, or with arguments that no built-in can read, under `unknown`.',
        querystring: Grouping,
        response: { 200: Stats },
      },
    },
    async ({ caller, query }) => ({
      data: await store.executions.stats(caller, query.group_by ?? 'tool', query),
    }),
  )
  app.get(
    '/tool-executions/:id',
    {
      schema: {
        operationId: 'getToolExecution',
        summary: 'Read one call',
        params: IdParam,
        response: { 200: ExecutionView },
      },
    },
    async (request) => {
      const execution = await store.executions.get(request.caller, request.params.id)
      if (execution) return shown(execution)
      throw new BatonError('tool_execution_not_found', `No tool execution ${request.params.id} exists.`)
    },
  )
  app.get(
    '/tool-executions/:id/output',
    {
      schema: {
        operationId: 'getToolOutput',
        summary: "Read a call's full output, in slices",
        description: 'Slices are in bytes and never split a character.',
        params: IdParam,
        querystring: Slice,
        response: { 200: Output },
      },
    },
    async (request) => {
      const { id } = request.params
      const stored = await store.executions.output(request.caller, id)
      if (!stored) throw noOutput(id)
      const { path = '', offset = 0, limit = 65_536 } = request.query
      return { exec_id: id, ...outputSlice(stored, { path, offset, limit }) }
    },
  )
}

const noOutput = (id: string) =>
  new BatonError(
    'tool_execution_not_found',
    `No tool execution ${id} exists that has ended and left an output.`,
  )
