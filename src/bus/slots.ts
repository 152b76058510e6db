/**
 * Slots that calls take while they run: each tool has some, all tools together have some. Calls that find none wait in
 * one line and are served in the order of arrival. A call whose tool has a free slot passes calls that wait for other
 * tools, never one of its own. Two implementations, this one and redis/slots.ts.
 */

/** A call that wants a slot. */
export interface Ticket {
  /** Unique in this process */
  id: string
  tool: string
  /** Slots of this tool */
  most: number
}

export interface Slots {
  /** `in`: the slot is taken. `line`: `onGranted` will tell. `full`: more than `lineLimit` would wait for the tool. */
  enter(ticket: Ticket, lineLimit: number): Promise<'in' | 'line' | 'full'>
  /** Gives the slot back, or leaves the line; the next in line comes in. Never rejects. */
  leave(ticket: Ticket): Promise<void>
  onGranted(fn: (ticket: string) => void): void
}

/** Slots of one process. */
interface MemorySlots extends Slots {
  /** Takes a slot unasked, for a call that another authority let in. */
  hold(ticket: Ticket): void
  /** Whether the call of this id has a slot */
  holds(id: string): boolean
  /** The calls that have a slot */
  held(): Ticket[]
}

/** `total`: slots of all tools together. */
export function createMemorySlots(total: number): MemorySlots {
  const inside = new Map<string, Ticket>()
  const running = new Map<string, number>()
  const listeners: ((ticket: string) => void)[] = []
  let line: Ticket[] = []

  function hold(ticket: Ticket): void {
    if (inside.has(ticket.id)) return
    inside.set(ticket.id, ticket)
    running.set(ticket.tool, (running.get(ticket.tool) ?? 0) + 1)
  }

  const hasSlot = ({ tool, most }: Ticket) => inside.size < total && (running.get(tool) ?? 0) < most

  /** Lets in the calls that can come in, first come first. */
  function serve(): void {
    const passed = new Set<string>()
    const granted = line.filter((ticket) => {
      if (passed.has(ticket.tool) || !hasSlot(ticket)) {
        passed.add(ticket.tool)
        return false
      }
      hold(ticket)
      return true
    })
    if (granted.length === 0) return
    line = line.filter((ticket) => !inside.has(ticket.id))
    for (const { id } of granted) for (const tell of listeners) tell(id)
  }

  return {
    hold,
    holds: (id) => inside.has(id),
    held: () => [...inside.values()],
    async enter(ticket, lineLimit) {
      const before = line.filter(({ tool }) => tool === ticket.tool).length
      if (before === 0 && hasSlot(ticket)) {
        hold(ticket)
        return 'in'
      }
      if (before >= lineLimit) return 'full'
      line.push(ticket)
      return 'line'
    },
    async leave({ id }) {
      const ticket = inside.get(id)
      if (!ticket) {
        line = line.filter((one) => one.id !== id)
        return
      }
      inside.delete(id)
      const left = (running.get(ticket.tool) ?? 1) - 1
      if (left > 0) running.set(ticket.tool, left)
      else running.delete(ticket.tool)
      serve()
    },
    onGranted: (fn) => void listeners.push(fn),
  }
}
