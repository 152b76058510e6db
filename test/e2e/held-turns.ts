/** Turns that a test holds in their middle, until it lets them go. */

import type { Answer, Scene } from '../emulators/scene.ts'
import { gate } from '../waiting.ts'
import { type EventStream, type Json, ofType } from './client.ts'
import type { World } from './harness.ts'
import { textResult } from './tool-server.ts'

/** A scene that says one word, and the second only when the gate opens. */
export const held = (until: Promise<unknown>): Answer => ({
  items: [
    { type: 'text', text: 'first ' },
    { type: 'wait', until },
    { type: 'text', text: 'second' },
  ],
})

/** A model that is held in its first request until that request is cut off; asked again, it does what `then` says. */
export function speaksThen(
  world: World,
  then: Scene | ((asked: number) => Scene),
): { open(): void; asked(): number } {
  const { opened, open } = gate()
  let asked = 0
  world.script((_, { step }) => {
    if (step > 0) return null
    asked++
    if (asked === 1) return held(opened)
    return typeof then === 'function' ? then(asked) : then
  })
  return { open, asked: () => asked }
}

/** A turn whose model has said its first word and waits. */
export async function speaking(
  world: World,
  session: string,
): Promise<{ stream: EventStream; turn: string; open(): void }> {
  const { opened, open } = gate()
  world.script((_, { user }) => (user.startsWith('held') ? held(opened) : null))
  const stream = await world.api.turn(session, 'held')
  await stream.until('content.delta')
  return { stream, open, turn: stream.turn }
}

/** Settles while the model answers the turn's nth request, counted from 1. */
export const isSpeaking = (stream: EventStream, n: number) =>
  stream.until(
    () =>
      ofType(stream.frames, 'step.started').length === n && stream.frames.at(-1)?.type === 'content.delta',
  )

/** The answer of a tool that runs until its call is cancelled. */
export const untilCancelled = ({ signal }: { signal: AbortSignal }): Promise<Json> =>
  new Promise((resolve) => signal.addEventListener('abort', () => resolve(textResult('stopped'))))
