/** Turns that a test holds in their middle, until it lets them go. */

import type { Scene } from '../emulators/scene.ts'
import { gate } from '../waiting.ts'
import type { EventStream, Json } from './client.ts'
import type { World } from './harness.ts'
import { textResult } from './tool-server.ts'

/** A scene that says one word, and the second only when the gate opens. */
export const held = (until: Promise<unknown>): Scene => ({
  items: [
    { type: 'text', text: 'first ' },
    { type: 'wait', until },
    { type: 'text', text: 'second' },
  ],
})

/** A turn whose model has said its first word and waits. */
export async function speaking(
  world: World,
  session: string,
  body: Json = {},
): Promise<{ stream: EventStream; turn: string; open(): void }> {
  const { opened, open } = gate()
  world.script((_, { user }) => (user.startsWith('held') ? held(opened) : null))
  const stream = await world.api.turn(session, { input: 'held', ...body })
  await stream.until('content.delta')
  return { stream, open, turn: stream.headers.get('x-baton-turn') ?? '' }
}

/** Runs until it is cancelled. */
export const until = (signal: AbortSignal): Promise<Json> =>
  new Promise((resolve) => signal.addEventListener('abort', () => resolve(textResult('stopped'))))
