/**
 * The only code that turns a model's event stream into the parts of an assistant message. The engine
 * folds live, tests fold recordings, and both get the message that is stored.
 */
import type { ModelEvent } from './event.ts'
import { type AssistantPart, NO_USAGE, type Usage } from './message.ts'

export type Finish = Omit<Extract<ModelEvent, { type: 'finish' }>, 'type'>

export interface Fold {
  add(event: ModelEvent): void
  /** The finished parts, in the order of their index. */
  parts(): AssistantPart[]
  /** What a reader has seen as text so far: finished text parts and the open one; no reasoning, no calls. */
  textSoFar(): string
  usage(): Usage
  finish(): Finish | null
}

export function createFold(): Fold {
  /** Texts that are still growing; of everything else only the finished part counts */
  const open = new Map<number, string>()
  const done = new Map<number, AssistantPart>()
  let usage = NO_USAGE
  let finish: Finish | null = null
  const inOrder = <T>(map: Map<number, T>) => [...map].sort(([a], [b]) => a - b).map(([, value]) => value)
  return {
    add(event) {
      switch (event.type) {
        case 'text.delta':
          open.set(event.index, (open.get(event.index) ?? '') + event.text)
          return
        case 'reasoning.delta':
        case 'tool_call.delta':
          return
        case 'part':
          open.delete(event.index)
          done.set(event.index, event.part)
          return
        case 'usage':
          usage = event.usage
          return
        case 'finish': {
          const { type: _, ...how } = event
          finish = how
          return
        }
        default:
          return event satisfies never
      }
    },
    parts: () => inOrder(done),
    textSoFar() {
      const texts = new Map<number, string>()
      for (const [index, part] of done) if (part.type === 'text') texts.set(index, part.text)
      for (const [index, text] of open) texts.set(index, text)
      return inOrder(texts).join('')
    },
    usage: () => usage,
    finish: () => finish,
  }
}
