/** Servers that are started for a run end with it, also where a closed terminal ends the run. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, readdirSync } from 'node:fs'
import { connect } from 'node:net'
import { createInterface } from 'node:readline'
import t from 'tap'
import { ON_SERVERS } from './given-servers.ts'
import { scratch } from './scratch.ts'
import { eventually } from './waiting.ts'

const RUN = `
  import { endOnSignals } from '${new URL('../bench/chaos/world.js', import.meta.url)}'
  import { startPostgres, startRedis } from '${new URL('./servers.js', import.meta.url)}'
  endOnSignals()
  const servers = [await startPostgres(), await startRedis()]
  console.log(JSON.stringify(servers.map(({ url }) => Number(new URL(url).port))))`

const isOpen = (port: number) =>
  new Promise<boolean>((resolve) => {
    const socket = connect({ host: '127.0.0.1', port }, () => resolve(true)).once('error', () =>
      resolve(false),
    )
    socket.once('connect', () => socket.destroy())
  })

t.test(
  'a closed terminal ends the servers of a run, and leaves none of their files',
  ON_SERVERS,
  async (t) => {
    const folder = scratch(t)
    // PostgreSQL may run as another user.
    chmodSync(folder, 0o755)
    const run = spawn(process.execPath, ['--input-type=module', '--eval', RUN], {
      env: { ...process.env, TMPDIR: folder },
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    t.teardown(() => run.kill())
    const [line] = await once(createInterface(run.stdout), 'line')
    const ports: number[] = JSON.parse(line)
    t.same(await Promise.all(ports.map(isOpen)), [true, true])
    t.equal(readdirSync(folder).length, 2)
    run.kill('SIGHUP')
    await once(run, 'close')
    t.equal(run.exitCode, 1)
    t.same(readdirSync(folder), [])
    for (const port of ports) await eventually(async () => !(await isOpen(port)))
  },
)
