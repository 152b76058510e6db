/** The environment of a stdio server: what is declared and six harmless defaults, nothing of the gateway's. */
import { tmpdir } from 'node:os'
import { dirname } from 'node:path'
import { BatonError } from '../errors.ts'

/** Variables that change what a program executes rather than how it is configured. */
const REFUSED_NAMES = /^(NODE_OPTIONS|LD_.*|DYLD_.*|PYTHON.*|BASH_ENV|ENV|IFS)$/i

/** Throws invalid_request for a variable that must not be handed to a server process, or is no variable. */
export function assertStdioEnv(env: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(env)) {
    const param = `env.${name}`
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name))
      throw new BatonError('invalid_request', `"${name}" is no name of an environment variable.`, { param })
    if (REFUSED_NAMES.test(name))
      throw new BatonError('invalid_request', `${name} can make the server run other code and is refused.`, {
        param,
      })
    if (value.includes('\0'))
      throw new BatonError('invalid_request', `The value of ${name} holds a NUL byte.`, { param })
  }
}

/** All that a platform or the SDK would hand down by itself is set, then the declared variables. */
export function childEnv(declared: Readonly<Record<string, string>>): Record<string, string> {
  assertStdioEnv(declared)
  return {
    HOME: tmpdir(),
    USER: 'baton',
    LOGNAME: 'baton',
    SHELL: '/bin/sh',
    TERM: 'dumb',
    // The directory of this very node comes first: most servers are started with `node`.
    PATH: `${dirname(process.execPath)}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`,
    ...declared,
  }
}
