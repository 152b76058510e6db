/** What a server's process can see and reach in bubblewrap, and that no process outlives the gateway. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { type Isolation, openSandbox } from '../../src/mcp/sandbox.ts'
import { listening } from '../listening.ts'
import { call, door } from './door.ts'
import { CHILD, child, ended, told } from './processes.ts'

const GATEWAY = fileURLToPath(new URL('./servers/gateway.js', import.meta.url))

t.test('servers and their descendants end when the gateway is killed', async (t) => {
  const gateway: ChildProcess = spawn(process.execPath, [GATEWAY, CHILD, 'stubborn'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  t.teardown(() => gateway.kill('SIGKILL'))
  if (!gateway.stdout) throw new Error('no stdout')
  const [line] = (await once(createInterface({ input: gateway.stdout }), 'line')) as [string]
  const pids = JSON.parse(line) as number[]
  t.equal(pids.length, 2)
  for (const pid of pids) t.doesNotThrow(() => process.kill(pid, 0), 'runs')
  gateway.kill('SIGKILL')
  for (const pid of pids) await ended(pid)
})

/** Ids of the machine's processes whose command line holds a text. */
const running = (text: string): number[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => commandLine(pid).includes(text))
    .map(Number)

function commandLine(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
  } catch {
    return ''
  }
}

interface Probe {
  user: number
  processes: number
  readable: string[]
  writable: string[]
  isReached: boolean
}

const isolation = 'bubblewrap' as const
const cannot = await openSandbox({ isolation, hidden: [] }).then(
  () => '',
  (failure: Error) => failure.message,
)

t.test(
  'a program in bubblewrap cannot read the gateway’s files, write to its folders or reach a port',
  { skip: process.env.CI === 'true' ? false : cannot },
  async (t) => {
    const folder = mkdtempSync(join(fileURLToPath(new URL('.', import.meta.url)), 'sandboxed-'))
    t.teardown(() => rmSync(folder, { recursive: true, force: true }))
    const [secret, file, open] = [
      join(folder, 'data', 'key'),
      join(folder, 'baton.yaml'),
      join(folder, 'open'),
    ]
    mkdirSync(join(folder, 'data'))
    for (const path of [secret, file, open]) writeFileSync(path, 'text')
    const server = createServer((socket) => socket.destroy())
    symlinkSync(join(folder, 'data'), join(folder, 'link'))
    const hidden = [join(folder, 'link'), file, join(folder, 'not there')]
    const asked = {
      read: [secret, file, open, `/proc/${process.pid}/environ`],
      write: ['/tmp', folder, '/var/tmp', process.cwd(), '/proc/sys/kernel/core_pattern'],
      port: await listening(t, server),
    }
    const probe = async (level: Isolation): Promise<Probe> => {
      const mcp = door(t, { sandbox: await openSandbox({ isolation: level, hidden }) })
      const answer = await told<Probe>(call(mcp, child('good'), 'probe', asked))
      await mcp.close()
      return answer
    }
    t.match(await probe('none'), { readable: asked.read, isReached: true }, 'without isolation')
    const shut = await probe('bubblewrap')
    t.match(shut, { user: 65534, readable: [open], isReached: false })
    t.ok(shut.processes <= 3, `the program sees ${shut.processes} processes`)
    const networked = await probe('bubblewrap-network')
    t.match(networked, { readable: [open], isReached: true })
    for (const { writable } of [shut, networked]) t.strictSame(writable, ['/tmp'])
  },
)

t.test(
  'a program in bubblewrap ends with its descendants when it is closed or orphaned',
  { skip: process.env.CI === 'true' ? false : cannot },
  async (t) => {
    const mark = (name: string) => `mark-${name}-${process.pid}`
    const mcp = door(t, { sandbox: await openSandbox({ isolation, hidden: [] }) })
    const spec = child('stubborn', { args: [CHILD, 'stubborn', mark('closed')] })
    await call(mcp, spec, 'grandchild')
    t.ok(running(mark('closed')).length > 0)
    await mcp.close()
    for (const pid of running(mark('closed'))) await ended(pid)

    const gateway = spawn(process.execPath, [GATEWAY, CHILD, 'stubborn', mark('orphaned')], {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, TEST_ISOLATION: isolation },
    })
    t.teardown(() => gateway.kill('SIGKILL'))
    await once(createInterface({ input: gateway.stdout }), 'line')
    const pids = running(mark('orphaned')).filter((pid) => pid !== gateway.pid)
    t.ok(pids.length > 0)
    gateway.kill('SIGKILL')
    for (const pid of pids) await ended(pid)
  },
)

t.test('opening a sandbox fails if the isolation that is asked for is not available', async (t) => {
  const program = '/no/such/bwrap'
  await t.rejects(openSandbox({ isolation, hidden: [], program }), {
    message: /bubblewrap.*is not installed/,
  })
  await t.rejects(openSandbox({ isolation, hidden: [], program: 'false' }), {
    message: /does not work here/,
  })
  t.equal(await openSandbox({ isolation: 'none', hidden: [], program }), null)
})
