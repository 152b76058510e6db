/** Reads what the scripts say of events: the lines on a session's channel, and the parts of a page. */
import type { LoggedEvent } from '../bus.ts'
import { formatCursor } from '../cursor.ts'

/** What one append published on the session's channel. */
export interface Published {
  generation: string
  /**
   * Id of the event before these. `fresh`: the log before was lost, but readers who listened have missed nothing;
   * `lost`: they have missed events, or may have heard some of these already
   */
  before: string | 'fresh' | 'lost'
  events: LoggedEvent[]
  /** Id of the newest of these; null where there is none */
  last: string | null
}

/** A message of the session's channel. Null: the session was dropped. */
export function readPublished(message: string, tag: string): Published | null {
  if (message === '') return null
  // Data is JSON, so it holds no line break.
  const lines = message.split('\n')
  const [generation = '', before = ''] = lines
  return {
    generation,
    before: before === '-' ? 'fresh' : before === '!' ? 'lost' : before,
    events: eventsIn(lines, 2, tag, generation),
    last: lines.at(-4) ?? null,
  }
}

/** Events as the scripts write them, each in four parts, from `start` on. */
export function eventsIn(
  parts: readonly string[],
  start: number,
  tag: string,
  generation: string,
): LoggedEvent[] {
  const events: LoggedEvent[] = []
  for (let i = start; i + 3 < parts.length; i += 4) {
    const [id = '', type = '', turn = '', data = ''] = parts.slice(i, i + 4)
    events.push({
      cursor: formatCursor(tag, { generation, id }),
      type,
      turn_id: turn === '' ? null : turn,
      data,
    })
  }
  return events
}
