/**
 * Kills the process groups of stdio servers when the gateway dies without saying so (SIGKILL, OOM): a shell of about 1
 * MB reads group ids from a pipe, and the pipe's end tells it of the gateway's end. It reaches grandchildren, which a
 * parent-death signal does not. Without /bin/sh the servers only see their stdin end.
 */
import { type ChildProcess, spawn } from 'node:child_process'

/** Knows the process groups that must not outlive the gateway. */
export interface Watchdog {
  add(group: number): void
  remove(group: number): void
  /** The gateway leaves in good order: nothing is killed. */
  stop(): void
}

const SCRIPT = `
while read -r verb group; do
  case $verb in
    add) groups="$groups $group" ;;
    remove) rest=; for g in $groups; do [ "$g" = "$group" ] || rest="$rest $g"; done; groups=$rest ;;
    stop) exit 0 ;;
  esac
done
for g in $groups; do kill -s KILL -- "-$g"; done
`

/** The shell is started with the first group. */
export function createWatchdog(): Watchdog {
  let shell: ChildProcess | null = null
  const start = (): ChildProcess => {
    // In a session of its own, so that a terminal's Ctrl-C does not take it away before the servers.
    const child = spawn('/bin/sh', ['-c', SCRIPT], {
      detached: true,
      stdio: ['pipe', 'ignore', 'ignore'],
      env: {},
    })
    child.on('error', () => {})
    child.stdin?.on('error', () => {})
    child.unref()
    if (child.stdin && 'unref' in child.stdin && typeof child.stdin.unref === 'function') child.stdin.unref()
    return child
  }
  const tell = (line: string): void => {
    shell?.stdin?.write(`${line}\n`)
  }
  return {
    add(group) {
      shell ??= start()
      tell(`add ${group}`)
    },
    remove: (group) => tell(`remove ${group}`),
    stop() {
      tell('stop')
      shell = null
    },
  }
}
