/**
 * The checker: reads the database, the MCP server's own record and every reader's events, and knows nothing
 * of how the gateway works. Each finding names its kind; a sound run has none.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { TurnEvent } from '../../src/chat/event.ts'
import type { Message, Part } from '../../src/chat/message.ts'
import { isTerminal, type Reading, type Seen } from './reader.ts'
import type { ChaosTurn } from './workload.ts'
import type { World } from './world.ts'

export const KINDS = [
  'turn_lost',
  'turn_failed',
  'turn_late',
  'turn_repeated',
  'event_lost',
  'event_repeated',
  'event_disordered',
  'event_untrue',
  'call_repeated',
  'call_open',
  'result_untrue',
  'write_stale',
  'step_elsewhere',
  'refusal_unclear',
  'memory_grew',
  'request_refused',
  'reader_refused',
  'error_logged',
] as const
export type Kind = (typeof KINDS)[number]
export interface Finding {
  kind: Kind
  turn: string
  what: string
}

interface Row {
  state: string
  error: { code: string } | null
  recoveries: number
}
interface StepRow {
  index: number
  provider: string
  finish_reason: string | null
  discarded: boolean
}
interface ExecutionRow {
  call_id: string
  tool: string
  state: string
  outcome: string | null
  arguments: { id?: string }
}
interface Stored {
  row: Row
  messages: Message[]
  steps: StepRow[]
  executions: ExecutionRow[]
}

/** All findings of one turn; `reference`: the whole stream, as a reader that came afterwards has it. */
export async function checkTurn(world: World, turn: ChaosTurn, reference: Reading): Promise<Finding[]> {
  const found: Finding[] = []
  const report = (kind: Kind, what: string) => found.push({ kind, turn: turn.id, what })
  const stored = await readStored(world, turn.id)
  if (!stored) {
    report('turn_lost', 'no row')
    return found
  }
  checkEnd(turn, stored, report)
  checkCalls(world, turn, stored, report)
  checkStream(reference, stored, report)
  for (const reading of turn.readings) checkReader(reading, reference, report)
  return found
}

/** A step that failed or was cancelled is kept without a message. */
const isCommitted = ({ discarded, finish_reason }: StepRow): boolean =>
  !discarded && finish_reason !== null && finish_reason !== 'error'

type Report = (kind: Kind, what: string) => void

/** The checker waits, too, for a database that a fault of another client's turn has taken away. */
const DATABASE_MS = 60_000

async function read<T>({ database }: World, sql: string, turn: string): Promise<T[]> {
  for (const until = Date.now() + DATABASE_MS; ; await sleep(100)) {
    try {
      return (await database.query(sql, [turn])).rows as T[]
    } catch (err) {
      if (Date.now() > until) throw err
    }
  }
}

async function readStored(world: World, turn: string): Promise<Stored | null> {
  const rows = <T>(sql: string) => read<T>(world, sql, turn)
  const [row] = await rows<Row>('select state, error, recoveries from turn where id = $1')
  if (!row) return null
  const messages = await rows<{ body: Message }>('select body from message where turn_id = $1 order by seq')
  return {
    row,
    messages: messages.map(({ body }) => body),
    steps: await rows<StepRow>(
      'select index, provider, finish_reason, discarded from step where turn_id = $1 order by index',
    ),
    executions: await rows<ExecutionRow>(
      'select call_id, tool, state, outcome, arguments from execution where turn_id = $1 order by id',
    ),
  }
}

function checkEnd(turn: ChaosTurn, { row, messages, steps }: Stored, report: Report): void {
  const isDone = row.state === 'completed' || (turn.isCancelled && row.state === 'cancelled')
  const code = row.error?.code
  if (row.state === 'failed') {
    // The promise is that a turn which lost its owner more than three times says so.
    if (code !== 'recovery_limit' || row.recoveries <= 3) report('turn_failed', `${code}`)
  } else if (!isDone) report('turn_lost', `state ${row.state}`)
  if (row.state === 'completed') {
    const last = textOf(messages.at(-1)?.parts ?? [])
    if (last !== turn.lastWords) report('turn_lost', `ended with: ${last}`)
  }
  const strange = turn.provider === null ? [] : steps.filter(({ provider }) => provider !== turn.provider)
  for (const { index, provider } of strange) report('step_elsewhere', `step ${index} asked ${provider}`)
  const committed = steps.filter(isCommitted)
  const indices = committed.map(({ index }) => index)
  if (new Set(indices).size !== indices.length) report('write_stale', `steps ${indices}`)
  const answers = messages.filter(({ role, incomplete }) => role === 'assistant' && !incomplete)
  if (answers.length !== committed.length) {
    report('write_stale', `${answers.length} answers of ${committed.length} steps`)
  }
}

function checkCalls(world: World, turn: ChaosTurn, stored: Stored, report: Report): void {
  const parts = stored.messages.flatMap((message) => message.parts as Part[])
  const calls = parts.filter((part) => part.type === 'tool_call')
  const results = parts.filter((part) => part.type === 'tool_result')
  for (const { call_id } of calls) {
    const count = results.filter((result) => result.call_id === call_id).length
    if (count === 0) report('call_open', `${call_id} has no result`)
    if (count > 1) report('write_stale', `${call_id} has ${count} results`)
  }
  const asked = stored.executions.map(({ arguments: args }) => args.id ?? '')
  const wanted = [...turn.charges, ...turn.looks]
  if (stored.row.state === 'completed') {
    for (const id of wanted) if (!asked.includes(id)) report('turn_lost', `${id} was never called`)
  }
  for (const { call_id, state, outcome, tool, arguments: args } of stored.executions) {
    if (state !== 'settled') report('call_open', `${call_id} is ${state} in the ledger`)
    const ran = world.tools.calls.filter((call) => call.args.id === args.id).length
    if (tool === 'kit.charge' && ran > 1) report('call_repeated', `${args.id} ran ${ran} times`)
    const result = results.find((one) => one.call_id === call_id)
    if (result && result.outcome !== outcome) {
      report('result_untrue', `${call_id}: ${outcome} in the ledger, ${result.outcome} in the history`)
    }
    if (outcome === 'ok' && ran === 0) report('result_untrue', `${call_id} is ok and never ran`)
    if (outcome === 'error')
      report('result_untrue', `${call_id}: ${textOf((result?.content ?? []) as Part[])}`)
  }
}

/** The stream against what was committed: no event is missing, told twice or untrue. */
function checkStream(reference: Reading, stored: Stored, report: Report): void {
  checkOrder(reference, report)
  // A log that was lost says so itself; the snapshot stands in for the events that it held.
  if (reference.events.some(({ type }) => type === 'gap')) return
  const events = reference.events.map(({ data }) => JSON.parse(data) as TurnEvent)
  const types = events.map(({ type }) => type)
  for (const type of BEGINNING) once(types, type, report)
  if (types[0] !== 'turn.created') report('event_disordered', `begins with ${types[0]}`)
  const ends = types.filter(isTerminal)
  if (ends.length !== 1) report(ends.length ? 'event_repeated' : 'event_lost', `${ends.length} ends`)
  else if (!isTerminal(types.at(-1) ?? '')) report('event_disordered', `ends with ${types.at(-1)}`)
  if (ends[0] !== undefined && ends[0] !== `turn.${stored.row.state}`) report('event_untrue', ends[0])
  const said = events.flatMap((event) => (event.type === 'message' ? [event.message] : []))
  const kept = stored.messages.filter(({ role }) => role !== 'user')
  compareMessages(said, kept, report)
  const settled = events.flatMap((event) =>
    event.type === 'tool_execution.completed' ? [event.call_id] : [],
  )
  sameSet(
    'tool_execution.completed',
    settled,
    stored.executions.map(({ call_id }) => call_id),
    report,
  )
  const steps = events.flatMap((event) => (event.type === 'step.completed' ? [String(event.step)] : []))
  const committed = stored.steps.filter(isCommitted)
  sameSet(
    'step.completed',
    steps,
    committed.map(({ index }) => String(index)),
    report,
  )
  checkDeltas(events, report)
}

const BEGINNING = ['turn.created', 'turn.started']

function once(types: string[], type: string, report: Report): void {
  const count = types.filter((one) => one === type).length
  if (count === 0) report('event_lost', type)
  if (count > 1) report('event_repeated', `${type} ${count} times`)
}

function compareMessages(said: Message[], kept: Message[], report: Report): void {
  sameSet(
    'message',
    said.map(({ id }) => id),
    kept.map(({ id }) => id),
    report,
  )
  const seqs = said.map(({ seq }) => seq)
  if (seqs.some((seq, i) => i > 0 && seq <= (seqs[i - 1] ?? 0)))
    report('event_disordered', `messages ${seqs}`)
  for (const message of said) {
    const stored = kept.find(({ id }) => id === message.id)
    if (stored && canonical(stored) !== canonical(message)) report('event_untrue', `message ${message.id}`)
  }
}

const canonical = ({ id, seq, role, parts }: Message): string => JSON.stringify([id, seq, role, parts])

function sameSet(name: string, said: string[], kept: string[], report: Report): void {
  for (const one of new Set(said)) {
    const count = said.filter((other) => other === one).length
    if (count > 1) report('event_repeated', `${name} ${one} ${count} times`)
    if (!kept.includes(one)) report('event_untrue', `${name} ${one} is not stored`)
  }
  for (const one of kept) if (!said.includes(one)) report('event_lost', `${name} ${one}`)
}

/** The text that a step streamed, less the discarded text, is the text of its message. */
function checkDeltas(events: TurnEvent[], report: Report): void {
  let text = ''
  for (const event of events) {
    if (event.type === 'content.delta') text += event.text
    if (event.type === 'step.discarded' || event.type === 'step.started') text = ''
    if (event.type !== 'message' || event.message.role !== 'assistant') continue
    const whole = textOf(event.message.parts as Part[])
    if (whole !== text) report('event_untrue', `step ${event.step} streamed "${text}" for "${whole}"`)
    text = ''
  }
}

const textOf = (parts: readonly Part[]): string =>
  parts.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('')

function checkReader(reading: Reading, reference: Reading, report: Report): void {
  for (const problem of reading.problems) report('reader_refused', `${reading.kind}: ${problem}`)
  checkOrder(reading, report)
  // A reader that comes back with a cursor from a log that was lost in between is told the turn's beginning once more.
  if (reading.connections === 1) {
    for (const type of BEGINNING) {
      const count = reading.events.filter((event) => event.type === type).length
      if (count > 1) report('event_repeated', `${reading.kind} reader: ${type} ${count} times`)
    }
  }
  const hasGap = [reading, reference].some(({ events }) => events.some(({ type }) => type === 'gap'))
  // A reader that was there when the log was emptied has the events from before, which the log has no more.
  if (hasGap || new Set(reading.events.map(generation)).size > 1) return
  const words = `${reading.kind} reader`
  if (frames(reading) === frames(reference)) return
  const missing = reference.events.filter((event) => !has(reading, event))
  const extra = reading.events.filter((event) => !has(reference, event))
  if (missing[0]) report('event_lost', `${words}: ${missing.length}, first ${missing[0].type}`)
  if (extra[0])
    report('event_untrue', `${words}: ${extra.length} that are not in the log, first ${extra[0].type}`)
  if (!missing[0] && !extra[0]) report('event_disordered', words)
}

const frames = ({ events }: Reading): string =>
  events.map(({ cursor, type, data }) => `${cursor} ${type} ${data}`).join('\n')
const has = ({ events }: Reading, wanted: Seen): boolean =>
  events.some(({ cursor, data }) => cursor === wanted.cursor && data === wanted.data)

/** Cursors grow, as texts, within a generation of the log. */
function checkOrder({ events, kind }: Reading, report: Report): void {
  const seen = new Set<string>()
  for (const { cursor, type } of events) {
    if (seen.has(cursor) && type !== 'gap') report('event_repeated', `${kind} reader: ${type} at ${cursor}`)
    seen.add(cursor)
  }
  for (let i = 1; i < events.length; i++) {
    const [a, b] = [events[i - 1], events[i]]
    if (!a || !b || b.type === 'gap' || generation(a) !== generation(b)) continue
    if (a.cursor >= b.cursor) report('event_disordered', `${kind} reader: ${b.type} at ${b.cursor}`)
  }
}
const generation = ({ cursor }: Seen): string => cursor.split('.')[1] ?? ''
