/** How often a vendor is asked whether a device login was granted. */
import { pino } from 'pino'
import t from 'tap'
import { openaiLogins } from '../../providers/openai/oauth.ts'
import { createDevices, type DevicesDeps } from '../../src/credentials/logins/device.ts'
import { sleepFor } from '../../src/credentials/renew-once.ts'
import { BatonError } from '../../src/errors.ts'
import type { DeviceGrant } from '../../src/oauth-vendor.ts'
import type { OAuthLogin } from '../../src/store/store.ts'
import { gate } from '../waiting.ts'

t.test('a vendor that is asked too fast is asked less often, and once for each login', async (t) => {
  const login = { state_hash: 'hash', provider: 'openai' } as OAuthLogin
  const polls = [
    { state: 'pending', isTooFast: true },
    { state: 'pending', isTooFast: false },
    { state: 'granted', code: 'c', verifier: 'v' },
  ]
  const slept: number[] = []
  const { opened: isGranted, open: end } = gate()
  const devices = createDevices({
    rows: { poll: async () => login },
    vendors: { get: () => ({ vendor: { device: { poll: () => ({}), readPoll: () => polls.shift() } } }) },
    http: { send: async () => ({ status: 200, headers: {}, body: '' }) },
    log: pino({ level: 'silent' }),
    sleep: async (ms: number) => void slept.push(ms),
    granted: async () => end(),
  } as unknown as DevicesDeps)
  const grant = { intervalSeconds: 5 } as DeviceGrant
  for (const _ of ['begun', 'asked for its status']) devices.watch(login, grant)
  await isGranted
  await devices.close()
  t.same(slept, [5_000, 10_000, 10_000])
})

t.test('a device login survives passing failures, and ends when it is refused or expires', async (t) => {
  const login = { state_hash: 'hash', provider: 'openai' } as OAuthLogin
  const answers = [new Error('connect ECONNREFUSED'), 'pending', 'refused']
  const rows = [login, login, null, login, null]
  const seen = [
    { state: 'pending', is_expired: false },
    { state: 'pending', is_expired: true },
  ]
  const finished: unknown[] = []
  let polls = 0
  const watching = (): [DevicesDeps, Promise<unknown>] => {
    const { opened: isOver, open: over } = gate()
    const readPoll = ({ body }: { body: string }) => {
      if (body === 'refused') throw new BatonError('upstream_rejected', 'It was declined.')
      return { state: 'pending', isTooFast: false }
    }
    const deps = {
      rows: {
        async poll() {
          polls++
          return rows.shift()
        },
        get: async () => {
          const row = seen.shift()
          if (row?.is_expired) over()
          return row
        },
      },
      vendors: { get: () => ({ vendor: { device: { poll: () => ({}), readPoll } } }) },
      http: {
        send: async () => {
          const body = answers.shift()
          if (body instanceof Error) throw body
          return { status: 200, headers: {}, body }
        },
      },
      log: pino({ level: 'silent' }),
      sleep: () => new Promise(setImmediate),
      granted: async () => t.fail('nobody granted it'),
      refused: async ({ state_hash }: OAuthLogin, { message }: BatonError) => {
        finished.push({ hash: state_hash, error: message })
        over()
      },
    }
    return [deps as unknown as DevicesDeps, isOver]
  }
  for (const asked of [4, 5]) {
    const [deps, isOver] = watching()
    const devices = createDevices(deps)
    devices.watch(login, { intervalSeconds: 5 } as DeviceGrant)
    await isOver
    for (const _ of [1, 2, 3]) await new Promise(setImmediate)
    t.equal(polls, asked, 'the login is not asked for again')
    await devices.close()
  }
  t.same(finished, [{ hash: 'hash', error: 'It was declined.' }])
})

t.test("OpenAI's answers to a device login are read in each of their forms", async (t) => {
  const { device } = openaiLogins
  const answer = (status: number, body: object) => ({ status, headers: {}, body: JSON.stringify(body) })
  for (const name of ['user_code', 'usercode']) {
    const begun = device?.readStart(answer(200, { device_auth_id: 'd', [name]: 'A-1', interval: '7' }))
    t.same(begun, { device: 'd', user_code: 'A-1', intervalSeconds: 7 }, name)
  }
  const told = (code: string) => ({ error: { code } })
  for (const [status, body, isTooFast] of [
    [403, {}, false],
    [404, {}, false],
    [502, {}, false],
    [400, told('deviceauth_authorization_pending'), false],
    [400, told('slow_down'), true],
    [429, {}, true],
  ] as const) {
    t.same(device?.readPoll(answer(status, body)), { state: 'pending', isTooFast }, `${status}`)
  }
  t.throws(() => device?.readPoll(answer(403, told('access_denied'))), { code: 'upstream_rejected' })
  for (const [status, code] of [
    [429, 'upstream_rate_limited'],
    [503, 'upstream_overloaded'],
    [400, 'upstream_rejected'],
    [200, 'upstream_rejected'],
  ] as const) {
    t.throws(() => device?.readStart(answer(status, {})), { code, details: { upstream: { status } } })
  }
})

t.test('any number of device logins wait without a warning of a leak', async (t) => {
  const warnings = t.capture(process, 'emitWarning')
  const devices = createDevices({ log: pino({ level: 'silent' }), sleep: sleepFor } as unknown as DevicesDeps)
  const grant = { intervalSeconds: 60 } as DeviceGrant
  for (let i = 0; i < 20; i++) devices.watch({ state_hash: `hash ${i}` } as OAuthLogin, grant)
  await devices.close()
  t.same(warnings(), [])
})
