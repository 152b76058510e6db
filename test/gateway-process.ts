import { spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'

const SERVER = fileURLToPath(new URL('../src/server.js', import.meta.url))

export interface LogLine {
  level: number
  msg: string
  [field: string]: unknown
}

/**
 * `npm start` as an operator runs it, in a folder of its own. Resolves once the gateway is ready or has ended: then
 * `url` is null and `code` says how. `hear` gets all that the gateway writes. The gateway is killed with the test.
 */
export async function gatewayProcess(
  t: Test,
  folder: string,
  env: Record<string, string>,
  hear: (text: string) => void = () => {},
) {
  const child = spawn(process.execPath, ['--enable-source-maps', SERVER], {
    cwd: folder,
    env: { PATH: process.env.PATH, BATON_PORT: '0', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
  t.teardown(() => {
    child.kill('SIGKILL')
    return ended
  })
  const log: LogLine[] = []
  let stderr = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text
    hear(text)
  })
  const ready = new Promise<string>((resolve) => {
    createInterface(child.stdout).on('line', (text) => {
      hear(text)
      const line: LogLine = text.startsWith('{') ? JSON.parse(text) : { level: 0, msg: text }
      log.push(line)
      if (line.msg === 'baton is ready') resolve(String(line.url))
    })
  })
  const url = await Promise.race([ready, ended.then(() => null)])
  return {
    url,
    code: url === null ? await ended : null,
    log,
    stderr,
    /** Ends the gateway, and tells its exit code. */
    stop(signal: NodeJS.Signals = 'SIGTERM') {
      child.kill(signal)
      return ended
    },
  }
}
