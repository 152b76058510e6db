/** The world that the tests of logins share: it costs more than most of them. */
import t from 'tap'
import { createWorld } from './world.ts'

export const world = await createWorld(t)
