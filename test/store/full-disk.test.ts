/** The embedded store on a disk that is nearly full, and on a full one. */
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { scratch } from '../scratch.ts'

const CHILD = fileURLToPath(new URL('./full-disk.js', import.meta.url))
const UNSHARE = process.getuid?.() === 0 ? ['--mount'] : ['--user', '--map-root-user', '--mount']
const folder = scratch(t)

/** Runs a command where only it and its children see what is mounted. */
const apart = (command: string) =>
  spawnSync(
    'unshare',
    [...UNSHARE, 'sh', '-c', `mount -t tmpfs -o size=300m none "${folder}" && ${command}`],
    {
      encoding: 'utf8',
      timeout: 300_000,
    },
  )
const cannot = apart('true').status === 0 ? false : 'unshare --mount is not allowed here'

t.test(
  'a vacuum waits until its log has room, and a database whose log has no room ends instead of hanging',
  { skip: process.env.CI === 'true' ? false : cannot },
  async (t) => {
    const { stdout, stderr } = apart(`"${process.execPath}" "${CHILD}" "${folder}"`)
    t.match(stdout, /^tight: 0 vacuums\nroomy: [1-9]\d* vacuums\nyoung: .+\nlost: .+\n$/, stderr)
  },
)
