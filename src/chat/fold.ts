/**
 * The only code that turns a model's event stream into the parts of an assistant message. The engine
 * folds live, tests fold recordings, and both get the message that is stored.
 */
import type { ModelEvent } from './event.ts'
import { type AssistantPart, NO_USAGE, type Usage } from './message.ts'

interface Open {
  kind: 'text' | 'reasoning' | 'tool_call'
  text: string
}

type Finish = Omit<Extract<ModelEvent, { type: 'finish' }>, 'type'>

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
  const open = new Map<number, Open>()
  const done = new Map<number, AssistantPart>()
  let usage = NO_USAGE
  let finish: Finish | null = null
  const grow = (index: number, kind: Open['kind'], text: string) => {
    const part = open.get(index)
    if (part) part.text += text
    else open.set(index, { kind, text })
  }
  const inOrder = <T>(map: Map<number, T>) => [...map].sort(([a], [b]) => a - b)
  return {
    add(event) {
      switch (event.type) {
        case 'text.delta':
          return grow(event.index, 'text', event.text)
        case 'reasoning.delta':
          return grow(event.index, 'reasoning', event.text)
        case 'tool_call.delta':
          return grow(event.index, 'tool_call', event.arguments_delta)
        case 'part':
          open.delete(event.index)
          done.set(event.index, event.part)
          return
        case 'usage':
          usage = event.usage
          return
        case 'finish':
          finish = {
            reason: event.reason,
            ...(event.invalid_call ? { invalid_call: event.invalid_call } : {}),
            ...(event.refusal ? { refusal: event.refusal } : {}),
          }
          return
        default:
          return event satisfies never
      }
    },
    parts: () => inOrder(done).map(([, part]) => part),
    textSoFar() {
      const texts = new Map<number, string>()
      for (const [index, part] of done) if (part.type === 'text') texts.set(index, part.text)
      for (const [index, part] of open) if (part.kind === 'text') texts.set(index, part.text)
      return inOrder(texts)
        .map(([, text]) => text)
        .join('')
    },
    usage: () => usage,
    finish: () => finish,
  }
}
