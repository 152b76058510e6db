import { pino } from 'pino'
import type { Test } from 'tap'
import { createApp } from '../src/app.ts'
import { loadConfig } from '../src/config/load.ts'

/** The whole gateway in this process, as the environment sets it up, without a log; it listens once it is told to. */
export async function wholeGateway(
  t: Test,
  env: Record<string, string>,
  given: Pick<Parameters<typeof createApp>[1], 'database'> = {},
) {
  const { config } = loadConfig(env, '/nowhere')
  const app = await createApp(config, { ...given, log: pino({ level: 'silent' }) })
  t.teardown(() => app.close())
  return { ...app, listen: () => app.http.listen({ host: '127.0.0.1', port: 0 }) }
}
