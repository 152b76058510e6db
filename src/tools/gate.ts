/**
 * How many calls run at once: of one tool, and of the whole toolbox. Waiting calls are served in the order
 * in which they came; the queue is bounded, and so is the wait.
 */
import { ToolBusy } from './execute.ts'

export interface Gate {
  /**
   * Resolves with the function that gives the place back. Throws ToolBusy, or the signal's reason. `tool`
   * says whose places they are; `name` is what the model calls it.
   */
  enter(tool: string, most: number, signal: AbortSignal, name?: string): Promise<() => void>
  waiting(): number
}

export interface GateOptions {
  /** Calls of all tools at once */
  maxConcurrent: number
  /** Calls that may wait for one tool */
  queueLimit?: number
  queueMs?: number
  onWaited?(ms: number): void
}

interface Waiter {
  tool: string
  most: number
  grant(): void
}

export function createGate({
  maxConcurrent,
  queueLimit = 64,
  queueMs = 10_000,
  onWaited,
}: GateOptions): Gate {
  const running = new Map<string, number>()
  /** One line for all, so that a tool with free places never overtakes within its own kind */
  let queue: Waiter[] = []
  let total = 0

  const hasPlace = (tool: string, most: number) => total < maxConcurrent && (running.get(tool) ?? 0) < most

  function occupy(tool: string): () => void {
    total++
    running.set(tool, (running.get(tool) ?? 0) + 1)
    let isGiven = false
    return () => {
      if (isGiven) return
      isGiven = true
      total--
      const left = (running.get(tool) ?? 1) - 1
      if (left > 0) running.set(tool, left)
      else running.delete(tool)
      serve()
    }
  }

  function serve(): void {
    for (const waiter of queue) {
      if (total >= maxConcurrent) return
      if (hasPlace(waiter.tool, waiter.most)) waiter.grant()
    }
  }

  function wait(tool: string, most: number, signal: AbortSignal, name: string): Promise<() => void> {
    const since = performance.now()
    return new Promise((resolve, reject) => {
      const leave = () => {
        queue = queue.filter((one) => one !== waiter)
        clearTimeout(timer)
        signal.removeEventListener('abort', onAbort)
        onWaited?.(performance.now() - since)
      }
      const onAbort = () => {
        leave()
        reject(signal.reason)
      }
      const timer = setTimeout(() => {
        leave()
        reject(new ToolBusy(`${name} is busy: no place came free within ${queueMs / 1000} s.`))
      }, queueMs)
      const waiter: Waiter = {
        tool,
        most,
        grant() {
          leave()
          resolve(occupy(tool))
        },
      }
      signal.addEventListener('abort', onAbort, { once: true })
      queue.push(waiter)
    })
  }

  return {
    waiting: () => queue.length,
    async enter(tool, most, signal, name = tool) {
      signal.throwIfAborted()
      // Nobody of the same tool may be overtaken.
      if (hasPlace(tool, most) && !queue.some((waiter) => waiter.tool === tool)) return occupy(tool)
      if (queue.filter((waiter) => waiter.tool === tool).length >= queueLimit) {
        throw new ToolBusy(`${name} is busy: ${queueLimit} calls wait for it already.`)
      }
      return wait(tool, most, signal, name)
    },
  }
}
