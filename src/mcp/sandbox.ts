/**
 * bubblewrap around stdio servers, if the operator asks for it: namespaces of their own, a read-only file system
 * without the gateway's data, a /tmp that ends with the process, no other process visible, and no network unless that
 * is asked for, too. If the isolation that is asked for does not work, Baton does not start: a server must not run more
 * freely than the operator thinks.
 */
import { spawn } from 'node:child_process'
import { existsSync, realpathSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { childEnv } from './child-env.ts'

/** As in BATON_STDIO_ISOLATION. */
export type Isolation = 'none' | 'bubblewrap' | 'bubblewrap-network'

/** The walls around a server's program, which have been tried. */
export interface Sandbox {
  /** What to start in place of a command. */
  around(command: string, args: readonly string[]): { command: string; args: string[] }
}

interface SandboxOptions {
  isolation: Isolation
  /** Files and folders of the gateway that servers must not read; missing ones are skipped */
  hidden: readonly string[]
  /** Stands in for the program on the PATH in tests */
  program?: string
}

/** Null: no isolation was asked for. Throws an Error in plain words if bubblewrap is missing or is not allowed to work. */
export async function openSandbox({
  isolation,
  hidden,
  program = 'bwrap',
}: SandboxOptions): Promise<Sandbox | null> {
  if (isolation === 'none') return null
  const walls = wallsFor(isolation, hidden)
  const sandbox: Sandbox = {
    around: (command, args) => ({ command: program, args: [...walls, '--', command, ...args] }),
  }
  const problem = await failure(sandbox.around('/bin/sh', ['-c', ':']))
  if (problem === null) return sandbox
  throw new Error(
    `BATON_STDIO_ISOLATION is ${isolation}, but ${problem}. Install bubblewrap and let it make namespaces, or set it to none.`,
  )
}

/** Nobody's user and group: servers see these in place of the gateway's own, wherever that is allowed. */
const NOBODY = '65534'

function wallsFor(isolation: Isolation, hidden: readonly string[]): string[] {
  const tmp = [...new Set(['/tmp', tmpdir()])]
  const here = process.cwd()
  const isOnline = isolation === 'bubblewrap-network'
  return [
    '--unshare-all',
    ...['--uid', NOBODY, '--gid', NOBODY],
    // If the gateway dies without a word, so do the servers; processes that they started die with their first one.
    '--die-with-parent',
    ...['--ro-bind', '/', '/'],
    ...['--dev', '/dev'],
    ...['--proc', '/proc'],
    // bubblewrap leaves the kernel's settings to their owner, which the servers of a gateway that runs as root still are.
    ...['--ro-bind-try', '/proc/sys', '/proc/sys'],
    // These folders hold sockets that would lead around the missing network, and other programs' files.
    ...[...tmp, '/run'].flatMap((folder) => ['--tmpfs', folder]),
    // Servers are started in the gateway's own folder, wherever that is.
    ...(tmp.some((folder) => here.startsWith(`${folder}/`)) ? ['--ro-bind', here, here] : []),
    ...(isOnline ? ['--share-net', '--ro-bind-try', RESOLVED, RESOLVED] : []),
    // Nothing can be mounted over a link, and its target is what must not be read.
    ...hidden.filter((path) => existsSync(path)).flatMap((path) => hide(realpathSync(path))),
  ]
}

/** Many a resolv.conf is a link into this folder. */
const RESOLVED = '/run/systemd/resolve'

const hide = (path: string): string[] =>
  statSync(path).isDirectory() ? ['--tmpfs', path] : ['--ro-bind', '/dev/null', path]

const PATIENCE_MS = 10_000
const SHOWN = 300

/** Why the command did not end well; null: it did. */
function failure({ command, args }: { command: string; args: string[] }): Promise<string | null> {
  return new Promise((resolve) => {
    const stdio = ['ignore', 'ignore', 'pipe'] as const
    // Not spawn's own timeout: if the program is missing, its timer stays and keeps this process from ending.
    const signal = AbortSignal.timeout(PATIENCE_MS)
    const child = spawn(command, args, { env: childEnv({}), stdio: [...stdio], signal })
    let said = ''
    child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      said = (said + text).slice(0, SHOWN)
    })
    child.on('error', (error: NodeJS.ErrnoException) =>
      resolve(error.code === 'ENOENT' ? 'bubblewrap (bwrap) is not installed' : error.message),
    )
    child.on('close', (code) => resolve(code === 0 ? null : `it does not work here (${said.trim()})`))
  })
}
