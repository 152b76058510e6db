/** Passes a server's questions on, a few at a time: one that asks without end must not hold up everybody else. */
import type { JSONRPCRequest, Transport } from '@modelcontextprotocol/client'
import { isWithin } from '../chat/json.ts'

type Deliver = NonNullable<Transport['onmessage']>
type Question = [request: JSONRPCRequest, extra: Parameters<Deliver>[1]]

/**
 * How many of a server's questions are answered at a time. Over HTTP each answer is a request: with 16, two servers
 * that ask without end held every pass of the event loop for 100 ms; with 4 it is a quarter of that.
 */
const MOST_ASKED = 4
/** Questions that wait until others are answered; further ones get no answer */
const MOST_WAITING = 256
/** Nor does a larger one that would have to wait: each may have megabytes, and a server need not take the answers. */
const LARGEST_WAITING = { values: 1_000, bytes: 16 * 1024 }

export function createQuestions(give: Deliver) {
  const waiting: Question[] = []
  /** Ids of questions that were passed on and are not answered; the server may use an id twice */
  const asked: unknown[] = []
  let answering = 0
  const forget = (id: unknown): void => {
    const at = asked.indexOf(id)
    if (at >= 0) asked.splice(at, 1)
  }
  const isFree = () => asked.length + answering < MOST_ASKED
  const goOn = (): void => {
    while (isFree()) {
      const next = waiting.shift()
      if (!next) return
      asked.push(next[0].id)
      give(...next)
    }
  }
  return {
    ask(...question: Question): void {
      const mayWait = waiting.length < MOST_WAITING && isWithin(question[0], LARGEST_WAITING)
      if (mayWait || isFree()) waiting.push(question)
      goOn()
    },
    cancelled(id: unknown): void {
      const at = waiting.findIndex(([request]) => request.id === id)
      if (at >= 0) waiting.splice(at, 1)
      else forget(id)
      goOn()
    },
    /** A question counts until its answer has left, even if the server cancels it meanwhile. */
    async answered(id: unknown, send: () => Promise<void>): Promise<void> {
      forget(id)
      answering++
      await send().finally(() => {
        answering--
        goOn()
      })
    },
  }
}
