/**
 * How many calls run at once: of one tool, and of the whole toolbox, over all replicas that share a bus. Waiting calls
 * are served in the order in which they came; the queue is bounded, and so is the wait.
 */
import type { Slots, Ticket } from '../bus/slots.ts'
import type { Metrics } from '../telemetry.ts'
import { pause, unlessAborted } from '../within.ts'
import { ToolBusy } from './execute.ts'

/** Slots for calls, of each tool and of all together. */
export interface Gate {
  /**
   * Resolves with the function that gives the slot back. Throws ToolBusy, or the signal's reason. `tool`
   * says whose slots they are; `name` is what metrics and messages call it.
   */
  enter(tool: string, most: number, signal: AbortSignal, name?: string): Promise<() => void>
}

export interface GateOptions {
  slots: Slots
  queueMs: number
  metrics: Pick<Metrics, 'toolAsked' | 'toolEntered' | 'toolLeft' | 'toolWaits' | 'toolRefused'>
}

/** Calls that may wait for one tool. */
const QUEUE_LIMIT = 64

export function createGate(options: GateOptions): Gate {
  const { slots, queueMs, metrics } = options
  /** Who waits for a slot, by ticket */
  const waiting = new Map<string, () => void>()
  let last = 0
  slots.onGranted((ticket) => waiting.get(ticket)?.())

  function occupied(ticket: Ticket, name: string, since: number): () => void {
    metrics.toolEntered(name, performance.now() - since)
    return () => {
      metrics.toolLeft()
      void slots.leave(ticket)
    }
  }

  /** Asks for a slot, and waits for it where none is free. Throws the signal's reason. */
  async function take(ticket: Ticket, signal: AbortSignal): Promise<'in' | 'full' | 'late'> {
    // Set before `enter` asks: the message that a slot came free may overtake its answer.
    const granted = new Promise<'in'>((resolve) => {
      waiting.set(ticket.id, () => resolve('in'))
    })
    const over = new AbortController()
    try {
      const answer = await slots.enter(ticket, QUEUE_LIMIT)
      if (answer !== 'line') return answer
      metrics.toolWaits(1)
      const late = pause(queueMs, over.signal).then(() => 'late' as const)
      const wait = unlessAborted(signal, Promise.race([granted, late]))
      return await wait.finally(() => metrics.toolWaits(-1))
    } finally {
      over.abort()
      waiting.delete(ticket.id)
    }
  }

  return {
    async enter(tool, most, signal, name = tool) {
      signal.throwIfAborted()
      // Counted before the wait: the metrics name a tool even if other replicas' calls keep its first call waiting.
      metrics.toolAsked(name)
      const since = performance.now()
      const ticket: Ticket = { id: String(++last), tool, most }
      try {
        const answer = await take(ticket, signal)
        signal.throwIfAborted()
        if (answer === 'in') return occupied(ticket, name, since)
        metrics.toolRefused(name)
        throw new ToolBusy(
          answer === 'full'
            ? `${name} is busy: ${QUEUE_LIMIT} calls wait for it already.`
            : `${name} is busy: no slot came free within ${queueMs / 1000} s.`,
        )
      } catch (reason) {
        await slots.leave(ticket)
        throw reason
      }
    },
  }
}
