/**
 * Runs in a network of its own (`unshare --net`) where private addresses lead to a listener, which sees every
 * connection that the guard lets through. Prints the outcome of each attempt, as JSON.
 */
import { execFileSync } from 'node:child_process'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createGuard, type GuardOptions } from '../../../src/guard.ts'

export interface SsrfReport {
  /** The guard's code for each target, and how many connections reached the listener meanwhile */
  refused: { target: string; code: string; reached: number }[]
  /** The same targets without the guard's rules: each must be reached, or the refusals prove nothing */
  open: { target: string; status: number }[]
}

/** Addresses for the loopback device of this network, where nothing else has them. */
const ADDRESSES = ['10.0.0.7/32', '169.254.169.254/32', '192.168.3.4/32', '100.64.0.9/32', 'fd00::7/128']
execFileSync('ip', ['link', 'set', 'lo', 'up'])
for (const address of ADDRESSES) execFileSync('ip', ['addr', 'add', address, 'dev', 'lo', 'nodad'])

let reached = 0
const server = createServer((request, response) => {
  const to = new URL(request.url ?? '/', 'http://x').searchParams.get('to')
  if (to === null) return void response.end('inner')
  response.writeHead(302, { location: to }).end()
})
server.on('connection', () => reached++)
await new Promise<void>((resolve) => server.listen(0, '::', resolve))
const { port } = server.address() as AddressInfo

/** Targets that the system's own resolver reads. */
const LITERALS = [
  '127.0.0.1',
  '0.0.0.0',
  '2130706433',
  '0x7f.1',
  '0177.0.0.1',
  '127.1',
  '10.0.0.7',
  '169.254.169.254',
  '0xa9fea9fe',
  '192.168.3.4',
  '100.64.0.9',
  '[::1]',
  '[::]',
  '[::ffff:127.0.0.1]',
  '[::ffff:a9fe:a9fe]',
  '[fd00::7]',
  'localhost',
]

async function attempt(target: string, options: GuardOptions, path = '/'): Promise<number> {
  const guard = createGuard(options)
  try {
    const response = await guard.fetch(`http://${target}:${port}${path}`)
    await response.text()
    return response.status
  } finally {
    await guard.close()
  }
}

async function refusal(target: string, run: () => Promise<unknown>) {
  const before = reached
  const code = await run().then(
    () => 'passed',
    (error: { code?: string; message: string }) => error.code ?? error.message,
  )
  return { target, code, reached: reached - before }
}

const report: SsrfReport = { refused: [], open: [] }
for (const target of LITERALS) {
  report.refused.push(await refusal(target, () => attempt(target, { allowPrivate: false })))
  report.open.push({ target, status: await attempt(target, { allowPrivate: true }) })
}
// The guard allows one address, and a redirect leads away from it: one connection, to the allowed address.
for (const to of [`http://169.254.169.254:${port}/`, `http://[fd00::7]:${port}/`, `//10.0.0.7:${port}/`]) {
  const path = `/?to=${encodeURIComponent(to)}`
  report.refused.push(
    await refusal(`redirect to ${to}`, () => attempt('127.0.0.1', { allowPrivate: ['127.0.0.1'] }, path)),
  )
}
// A name that is public when it is checked and private when it is dialled, and a name that is both at once.
for (const answers of [[['93.184.215.14'], ['10.0.0.7']], [['93.184.215.14', '10.0.0.7']]]) {
  const left = [...answers]
  const resolve: GuardOptions['resolve'] = async () =>
    (left.shift() ?? ['10.0.0.7']).map((address) => ({ address, family: 4 }))
  const guard = createGuard({ allowPrivate: false, resolve })
  const url = `http://rebound.test:${port}/`
  const run = async () => {
    await guard.assertUrl(url)
    await guard.fetch(url)
  }
  report.refused.push(await refusal(`a name that leads to ${JSON.stringify(answers)}`, run))
  await guard.close()
}
server.close()
server.closeAllConnections()
process.stdout.write(JSON.stringify(report))
