import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { mock } from 'node:test'
import t from 'tap'
import { BatonError } from '../src/errors.ts'
import { createLog, createPresence, logLine } from '../src/log.ts'

t.test('a secret under a usual name is not logged', async (t) => {
  let written = ''
  const log = createLog('debug', { write: (line: string) => (written += line) })
  const secrets = {
    api_key: 'leak-1',
    access_token: 'leak-2',
    refresh_token: 'leak-3',
    client_secret: 'leak-4',
    authorization: 'leak-5',
    'x-api-key': 'leak-6',
  }
  log.info(secrets, 'at the top')
  log.info({ credential: secrets }, 'one level down')
  log.warn({ req: { headers: secrets } }, 'among headers')
  log.debug({ headers: { cookie: 'leak-7', 'x-goog-api-key': 'leak-8' }, id: 'cred_1' }, 'others')
  log.trace('below the level')
  t.notMatch(written, 'leak')
  t.equal(written.match(/"\*\*\*"/g)?.length, 20)
  t.match(written, '"id":"cred_1"')
  t.equal(written.trim().split('\n').length, 4)
})

t.test('the log has one line when a server goes away, and one when it is back', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const lines: unknown[] = []
  const log = createLog('info', {
    write(line) {
      const { level, msg, reason } = JSON.parse(line)
      lines.push([level, msg, reason])
    },
  })
  const presence = createPresence(log, 'Redis is away', 'Redis is back')
  presence.back()
  for (const why of ['no route', 'refused', 'refused']) presence.away(new Error(why))
  presence.back()
  mock.timers.tick(4_999)
  presence.away(new Error('some fail, some do not'))
  mock.timers.tick(60_000)
  t.same(lines, [[40, 'Redis is away', 'no route']])
  presence.back()
  presence.back()
  mock.timers.tick(5_000)
  presence.back()
  mock.timers.tick(5_000)
  t.same(lines.slice(1), [[30, 'Redis is back', undefined]])
  presence.away(new Error('again'))
  t.same(lines.slice(2), [[40, 'Redis is away', 'again']])
})

t.test('the log tells the lasting reason a minute after a server went away, then every ten', async (t) => {
  let minutes = 0
  const { mock: now } = mock.method(performance, 'now', () => minutes * 60_000)
  t.teardown(() => now.restore())
  const told: unknown[] = []
  const log = { info() {}, warn: ({ reason }: { reason: string }) => void told.push([minutes, reason]) }
  const presence = createPresence(log as never, 'Redis is away', 'Redis is back')
  presence.away(new Error('the connection broke'))
  for (minutes = 0.5; minutes < 22; minutes += 0.5) presence.away(new Error('wrong password'))
  t.same(told, [
    [0, 'the connection broke'],
    [1, 'wrong password'],
    [11, 'wrong password'],
    [21, 'wrong password'],
  ])
})

t.test('failures because of a server that is away are logged for debugging only', async (t) => {
  const levels = (level: string) => {
    const lines: unknown[] = []
    const log = createLog(level, { write: (line) => void lines.push(JSON.parse(line).level) })
    const cause = new Error('refused')
    createPresence({ info() {}, warn() {} }, 'away', 'back').away(cause)
    const err = new BatonError('unavailable', 'The event bus is away.', { cause })
    log.warn({ err }, 'an event was lost')
    log.child({}).error({ err }, 'turn failed')
    log.warn({ err: new BatonError('internal', 'It broke.') }, 'an event was lost')
    const refused = new BatonError('unavailable', 'The event bus refused events.', {
      cause: new Error('why'),
    })
    log.warn({ err: refused }, 'an event was lost')
    log.fatal({ err }, 'the process is ending')
    log.info('nothing failed')
    return lines
  }
  t.same(levels('info'), [40, 40, 60, 30], 'a failure that no line on the server has told keeps its level')
  t.same(levels('debug'), [20, 20, 40, 40, 60, 30])
})

t.test('the end of a turn is one line: a constant message, ids and figures in fields', async (t) => {
  let written = ''
  const log = createLog('info', { write: (line: string) => (written += line) })
  logLine(log, 'turn ended', { session_id: 'ses_1', turn_id: 'turn_1', state: 'completed', steps: 2, ms: 12 })
  t.match(JSON.parse(written), {
    level: 30,
    msg: 'turn ended',
    session_id: 'ses_1',
    turn_id: 'turn_1',
    steps: 2,
    ms: 12,
  })
})

t.test('a line on a failure says why in codes, and warns unless the caller is at fault', async (t) => {
  const lines: Record<string, unknown>[] = []
  const log = createLog('info', { write: (line) => void lines.push(JSON.parse(line)) })
  const ends = (error: BatonError) => {
    const line = {
      session_id: 'ses_1',
      turn_id: 'turn_1',
      state: 'failed',
      code: error.code,
      steps: 0,
      ms: 1,
    }
    logLine(log, 'turn ended', { ...line, credential_id: 'cred_1' }, error.toBody())
    const { time, session_id, turn_id, msg, state, steps, ms, credential_id, ...told } = lines.at(-1) ?? {}
    t.equal(credential_id, 'cred_1')
    return told
  }
  const upstream = {
    status: 401,
    type: 'authentication_error',
    code: null,
    request_id: 'req_011',
    message: 'Hi!',
  }
  t.strictSame(
    ends(new BatonError('upstream_auth', 'It said: Hi!', { details: { upstream } })),
    {
      level: 40,
      code: 'upstream_auth',
      upstream_status: 401,
      upstream_type: 'authentication_error',
      upstream_request_id: 'req_011',
    },
    'the line holds no words of the vendor',
  )
  const google = { status: 429, code: 'RESOURCE_EXHAUSTED', reason: 'RATE_LIMIT_EXCEEDED' }
  t.match(ends(new BatonError('upstream_rate_limited', 'Wait.', { details: { upstream: google } })), {
    level: 40,
    upstream_code: 'RESOURCE_EXHAUSTED',
    upstream_reason: 'RATE_LIMIT_EXCEEDED',
  })
  t.strictSame(
    ends(new BatonError('upstream_rejected', 'No.', { details: { upstream: { code: 'what she said' } } })),
    { level: 40, code: 'upstream_rejected' },
    'words where a code is expected are left out',
  )
  for (const code of ['internal', 'recovery_limit'] as const)
    t.strictSame(ends(new BatonError(code, 'It broke.')), { level: 40, code })
  for (const code of ['context_too_long', 'no_credential', 'credential_needs_reauth'] as const)
    t.strictSame(
      ends(new BatonError(code, 'It cannot be.')),
      { level: 30, code },
      'a fault of the caller is no warning',
    )
})

t.test('lines that nobody took in time are counted in one line once there is room', async (t) => {
  const burst = `
    import { createLog } from '${new URL('../src/log.js', import.meta.url)}'
    const log = createLog('info')
    for (let i = 0; i < 3000; i++) log.info('x'.repeat(1000))
    process.send('written')
    process.once('message', () => process.disconnect())`
  const args = ['--input-type=module', '--eval', burst]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit', 'ipc'] })
  t.teardown(() => child.kill())
  await once(child, 'message')
  const told: { level: number; msg: string; lines?: number }[] = []
  for await (const line of createInterface(child.stdout as Readable)) {
    told.push(JSON.parse(line))
    if (told.at(-1)?.lines !== undefined) child.send('end')
  }
  const last = told.pop()
  t.match(last, { level: 40, msg: 'lines of the log were lost' })
  t.equal(told.length + (last?.lines ?? 0), 3000)
})
