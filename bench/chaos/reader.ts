/**
 * A client of a turn's events that never gives up: it goes on at another replica with its cursor whenever
 * a connection ends, and keeps all that it received, byte for byte.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { createDecoder } from '../../src/sse.ts'

export interface Seen {
  cursor: string
  type: string
  /** The data of the event, as it came */
  data: string
  /** When, by the driver's clock */
  at: number
}

export interface Reading {
  turn: string
  /** How the reader behaves, for the report */
  kind: string
  events: Seen[]
  connections: number
  /** From each request with a cursor to the first event that it brought: ms */
  resumed: number[]
  /** Answers that a cursor cannot heal */
  problems: string[]
  /** Resolves after the terminal event, or after a gap that tells of the turn's end */
  done: Promise<void>
}

export interface Follow {
  kind: string
  /** Where to connect, by number of the connection */
  place(connection: number): string
  /** Leaves after so many events of a connection; absent: stays */
  leaveAfter?(connection: number): number
  /** … and stays away for so long */
  awayMs?: number
  /** The reader gives up then; the events that it has are kept */
  signal: AbortSignal
  /** The answer of the request that began the turn, in place of the first connection */
  opened?: Response
}

const TERMINAL = new Set(['turn.completed', 'turn.failed', 'turn.cancelled'])
export const isTerminal = (type: string): boolean => TERMINAL.has(type)
const PAUSE_MS = 25

export function follow(turn: string, how: Follow): Reading {
  const reading: Reading = {
    turn,
    kind: how.kind,
    events: [],
    connections: 0,
    resumed: [],
    problems: [],
    done: Promise.resolve(),
  }
  reading.done = run(reading, how)
  return reading
}

async function run(reading: Reading, how: Follow): Promise<void> {
  while (!how.signal.aborted) {
    const url = how.place(reading.connections)
    const leaveAfter = how.leaveAfter?.(reading.connections) ?? Number.POSITIVE_INFINITY
    reading.connections++
    const opened = reading.connections === 1 ? how.opened : undefined
    const isOver = await connect(reading, opened ?? url, leaveAfter, how.signal).catch(() => false)
    if (isOver) return
    if (leaveAfter === Number.POSITIVE_INFINITY) await sleep(PAUSE_MS)
    else if (how.awayMs !== undefined) await sleep(how.awayMs)
  }
  reading.problems.push('gave up before the end of the turn')
}

/** One connection. True: the turn is over for this reader. */
async function connect(
  reading: Reading,
  at: string | Response,
  leaveAfter: number,
  signal: AbortSignal,
): Promise<boolean> {
  const cursor = reading.events.at(-1)?.cursor
  const asked = performance.now()
  const response =
    typeof at === 'string'
      ? await fetch(`${at}/v1/turns/${reading.turn}/events`, {
          headers: cursor === undefined ? {} : { 'last-event-id': cursor },
          signal,
        })
      : at
  if (response.status === 204) return true
  if (response.status !== 200 || !response.body) {
    if (response.status < 500) reading.problems.push(`${response.status} ${await response.text()}`)
    else await response.body?.cancel()
    return response.status < 500
  }
  let isOver = false
  let count = 0
  const decoder = createDecoder(({ event = '', id = '', data }) => {
    // Events that came in one piece with the last wanted one, after it, were never read.
    if (isOver || count >= leaveAfter) return
    count++
    if (count === 1 && cursor !== undefined) reading.resumed.push(performance.now() - asked)
    reading.events.push({ cursor: id, type: event, data, at: Date.now() })
    isOver = isTerminal(event) || (event === 'gap' && hasEnded(data))
  })
  const utf8 = new TextDecoder()
  for await (const chunk of response.body) {
    decoder.push(utf8.decode(chunk, { stream: true }))
    // A reader that has heard the turn's end waits for the stream's: it has to come, and frees the connection.
    if (count >= leaveAfter && !isOver) break
  }
  return isOver
}

const hasEnded = (data: string): boolean => {
  const { snapshot } = JSON.parse(data) as { snapshot: { turn: { ended_at: string | null } | null } }
  return (snapshot.turn?.ended_at ?? null) !== null
}
