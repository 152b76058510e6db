import { readFileSync } from 'node:fs'

/** Baton's own version, as package.json has it. */
export const VERSION: string = (
  JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { version: string }
).version

/** How Baton names itself in its requests. */
export const USER_AGENT = `baton/${VERSION}`
