/** The environment of a stdio server: the declared variables and six harmless defaults, nothing of the gateway's own. */
import { tmpdir } from 'node:os'
import { dirname } from 'node:path'
import { invalid } from '../errors.ts'

/** Variables that change what a program executes rather than how it is configured. */
const REFUSED_NAMES = /^(NODE_OPTIONS|LD_.*|DYLD_.*|PYTHON.*|BASH_ENV|ENV|IFS)$/i

/** Why a variable is illegal or must not be handed to a server process; null if it may be. */
export function envProblem(name: string, value: string): string | null {
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name))
    return 'is not a legal variable name: an environment variable has letters, digits and _ alone'
  if (REFUSED_NAMES.test(name)) return 'can make the server run other code and is refused'
  return value.includes('\0') ? 'has a value with a NUL byte' : null
}

/**
 * Sets all that a platform or the SDK would hand down by itself, then the declared variables. Throws invalid_request at
 * the first of these that `envProblem` refuses.
 */
export function childEnv(declared: Readonly<Record<string, string>>): Record<string, string> {
  for (const [name, value] of Object.entries(declared)) {
    const problem = envProblem(name, value)
    if (problem) throw invalid(`env.${name}`, `"${name}" ${problem}.`)
  }
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
