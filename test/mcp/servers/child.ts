/**
 * A raw MCP server over stdio. Its tools show the process and misbehave on demand. The first argument names how the
 * server itself misbehaves: `silent`, `stubborn`, `noisy`, `modern`, `undecided` (refuses `initialize`, and is
 * silent in the newer revision), `unlicensed` (refuses `initialize` for a reason of its own), `ancient`, `dead`,
 * `listless` (refuses `tools/list`), `torn` (refuses its second page once), or anything else for a healthy server.
 */
import { spawn, spawnSync } from 'node:child_process'
import {
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createInterface } from 'node:readline'

const [, , mode = 'good', scratch = ''] = process.argv

type Params = {
  name?: string
  cursor?: string
  arguments?: Record<string, unknown>
  protocolVersion?: string
  _meta?: Record<string, unknown>
}
type Rpc = { id?: number | string; method: string; params?: Params }

const write = (message: object): void =>
  void process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`)
const text = (value: unknown): object => ({
  content: [{ type: 'text', text: JSON.stringify(value) }],
  ...(mode === 'modern' && { resultType: 'complete' }),
})

/** A program that sleeps for ever, also through SIGTERM and the end of its stdin. */
const SLEEPER = "process.on('SIGTERM', () => {}); setInterval(() => {}, 1000)"

/** The methods of the requests until now */
const heard: string[] = []

const TOOLS: Record<string, (args: Record<string, unknown>, progressToken?: unknown) => object | null> = {
  env: () => text(process.env),
  pid: () => text(process.pid),
  heard: () => text(heard),
  /** What the process can read, write (files are left as they are) and reach, and how many processes it sees */
  probe: ({ read, write, port }) => {
    const dial = `require('net').connect(${Number(port)}, '127.0.0.1', () => process.exit(0)).on('error', () => process.exit(1))`
    return text({
      user: process.getuid?.(),
      processes: readdirSync('/proc').filter((name) => /^\d+$/.test(name)).length,
      readable: (read as string[]).filter((path) => tried(() => readFileSync(path).length > 0)),
      writable: (write as string[]).filter((path) =>
        tried(() => {
          if (statSync(path).isFile()) return closeSync(openSync(path, 'r+'))
          rmSync(mkdtempSync(`${path}/probe-`), { recursive: true })
        }),
      ),
      isReached: spawnSync(process.execPath, ['-e', dial]).status === 0,
    })
  },
  echo: (args) => text(args),
  /** A descendant that holds the server's stdout open */
  grandchild: () =>
    text(spawn(process.execPath, ['-e', SLEEPER], { stdio: ['ignore', 'inherit', 'inherit'] }).pid),
  crash: () => {
    process.stderr.write('last words\n')
    process.exit(3)
  },
  /** The process dies at the first call; the file `scratch` remembers this for its next life */
  once: () => {
    if (existsSync(scratch)) return text('second life')
    writeFileSync(scratch, '')
    process.exit(1)
  },
  hang: () => null,
  /** The process closes its end of a pipe, and lives on */
  close: ({ pipe }) => {
    setInterval(() => {}, 1000)
    closeSync(Number(pipe))
    return pipe === 1 ? null : text('closed')
  },
  chatter: (args) => {
    process.stdout.write(String(args.line).repeat(Number(args.times)))
    return text('said')
  },
  /** Progress and the answer leave in one piece */
  report: (_args, progressToken) => {
    process.stdout.cork()
    process.nextTick(() => process.stdout.uncork())
    write({ method: 'notifications/progress', params: { progressToken, progress: 1 } })
    return text('reported')
  },
  big: (args) => text('x'.repeat(Number(args.bytes))),
  /** Writes more than a pipe holds: a server whose stderr nobody reads stops here */
  complain: () => {
    for (let i = 0; i < 1_500; i++) process.stderr.write('e'.repeat(1_000))
    return text('still here')
  },
}

function tried(work: () => unknown): boolean {
  try {
    return work() !== false
  } catch {
    return false
  }
}

const names = Object.keys(TOOLS)
const tools = names.map((name) => ({ name, inputSchema: { type: 'object' } }))
/** The second page was refused */
let isTorn = false
const serverInfo = { name: 'child', version: '1.0.0' }

const ANSWERS: Record<string, (rpc: Rpc) => object | null> = {
  initialize: ({ params }) =>
    mode === 'silent'
      ? null
      : {
          protocolVersion: mode === 'ancient' ? '2023-01-01' : params?.protocolVersion,
          capabilities: { tools: {} },
          serverInfo,
        },
  'tools/list': () => ({
    tools: mode === 'torn' ? [{ ...tools[0], title: isTorn ? 'New' : 'Old' }] : tools,
    ...(mode === 'torn' && !isTorn && { nextCursor: 'second' }),
    ...(mode === 'modern' && { resultType: 'complete', ttlMs: 0, cacheScope: 'private' }),
  }),
  'tools/call': ({ params }) =>
    TOOLS[params?.name ?? '']?.(params?.arguments ?? {}, params?._meta?.progressToken) ?? null,
  'server/discover': () =>
    mode === 'undecided'
      ? null
      : {
          resultType: 'complete',
          supportedVersions: ['2026-07-28'],
          capabilities: { tools: {} },
          ttlMs: 0,
          cacheScope: 'private',
        },
}

if (mode === 'dead') {
  process.stderr.write('cannot find my config\n')
  process.exit(7)
}
if (mode === 'stubborn') {
  process.on('SIGTERM', () => {})
  setInterval(() => {}, 1_000)
}
if (mode === 'noisy') process.stdout.write('Server starting...\n{"not": "json-rpc"}\n\n\u0000\u0001\n')

createInterface({ input: process.stdin }).on('line', (line) => {
  const rpc = JSON.parse(line) as Rpc
  if (rpc.id === undefined) return
  heard.push(rpc.method)
  // A modern server knows no `initialize`; a legacy one no `server/discover`.
  const isModern = mode === 'modern' || mode === 'undecided'
  const isForeign = isModern === (rpc.method === 'initialize')
  if (isForeign && (isModern || rpc.method === 'server/discover'))
    return write({ id: rpc.id, error: { code: -32601, message: 'Method not found' } })
  if (mode === 'unlicensed' && rpc.method === 'initialize')
    return write({ id: rpc.id, error: { code: -32603, message: 'No licence' } })
  if (mode === 'noisy') {
    process.stdout.write(`handling ${rpc.method}\n`)
    // A log that has the beginning of each message
    process.stdout.write(`{"jsonrpc":"2.0","id":${rpc.id},"method":"${rpc.method}","par...\n`)
  }
  // The call's arguments become the answer, which is neither a result nor an error by JSON-RPC
  if (rpc.params?.name === 'broken') return write({ id: rpc.id, ...rpc.params.arguments })
  const isTearing = mode === 'torn' && rpc.params?.cursor !== undefined
  isTorn ||= isTearing
  if (isTearing || (mode === 'listless' && rpc.method === 'tools/list'))
    return write({ id: rpc.id, error: { code: -32603, message: 'Not now' } })
  const result = ANSWERS[rpc.method]?.(rpc)
  if (result) write({ id: rpc.id, result })
})
