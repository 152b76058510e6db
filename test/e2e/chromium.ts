/**
 * A real browser, driven by its debugging protocol over a pipe; it ends when the pipe does. It finds loopback
 * addresses and nothing else.
 */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Readable, Writable } from 'node:stream'
import type { Test } from 'tap'
import type { Json } from './client.ts'

export interface Page {
  /** Goes there and waits until the page, and whatever it was redirected to, is loaded. */
  open(url: string): Promise<void>
  /** Sends the form that a selector finds, and waits for the page that answers. */
  submit(selector: string): Promise<void>
  /** The value of an expression in the page; promises are waited for. */
  evaluate(expression: string): Promise<Json>
  /** What the page complained of so far: violations of its policy above all */
  complaints: string[]
}

const NAMES = ['chromium', 'chromium-browser', 'google-chrome']

/** The browser of this machine, if it has one. */
export const CHROMIUM = NAMES.find((name) => spawnSync(name, ['--version']).status === 0) ?? null

/** A page in a browser of its own, closed with the test. `hosts`: names that lead to this machine. */
export async function openBrowser(t: Test, hosts: readonly string[] = []): Promise<Page> {
  const folder = mkdtempSync(join(tmpdir(), 'baton-browser-'))
  t.teardown(() => rm(folder, { recursive: true, force: true, maxRetries: 3 }).catch(() => {}))
  const rules = [...hosts.map((host) => `MAP ${host} 127.0.0.1`), 'MAP * ~NOTFOUND']
  const child = spawn(
    CHROMIUM ?? 'chromium',
    [
      '--headless=new',
      '--remote-debugging-pipe',
      `--user-data-dir=${folder}`,
      `--host-resolver-rules=${rules.join(', ')}, EXCLUDE 127.0.0.1, EXCLUDE localhost`,
      // Containers need --no-sandbox, and their /dev/shm is small.
      ...['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu'],
      ...[
        '--no-first-run',
        '--disable-background-networking',
        '--disable-component-update',
        '--disable-sync',
      ],
      'about:blank',
    ],
    // Commands go in at 3 and come out at 4.
    { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] },
  )
  await once(child, 'spawn')
  const exited = once(child, 'exit')
  const [, , , commands, messages] = child.stdio as [null, null, null, Writable, Readable]
  commands.on('error', () => {})
  const wire = createWire(commands, messages)
  t.teardown(async () => {
    // In good order: the browser's other processes write into the folder until they have heard of the end.
    void wire.send('Browser.close')
    await exited
  })
  return openPage(wire)
}

/** Commands and their answers, and events that come unasked. */
interface Wire {
  send(method: string, params?: object, session?: string): Promise<Json>
  on(method: string, handler: (params: Json) => void): void
}

function createWire(commands: Writable, messages: Readable): Wire {
  const answers = new Map<number, (message: Json) => void>()
  const handlers = new Map<string, (params: Json) => void>()
  let rest = ''
  messages.setEncoding('utf8').on('data', (chunk: string) => {
    const texts = (rest + chunk).split('\0')
    rest = texts.pop() ?? ''
    for (const message of texts.map((text) => JSON.parse(text) as Json)) {
      if (message.id === undefined) handlers.get(message.method)?.(message.params)
      else answers.get(message.id)?.(message)
    }
  })
  let last = 0
  return {
    on: (method, handler) => void handlers.set(method, handler),
    send: (method, params = {}, sessionId) =>
      new Promise((resolve, reject) => {
        const id = ++last
        answers.set(id, ({ result, error }) => {
          answers.delete(id)
          if (error) reject(new Error(`${method}: ${error.message}`))
          else resolve(result)
        })
        commands.write(`${JSON.stringify({ id, method, params, ...(sessionId && { sessionId }) })}\0`)
      }),
  }
}

async function openPage(wire: Wire): Promise<Page> {
  const { targetId } = await wire.send('Target.createTarget', { url: 'about:blank' })
  const { sessionId } = await wire.send('Target.attachToTarget', { targetId, flatten: true })
  const send = (method: string, params: object = {}) => wire.send(method, params, sessionId)
  const complaints: string[] = []
  let loaded = () => {}
  wire.on('Page.loadEventFired', () => loaded())
  wire.on('Log.entryAdded', ({ entry }) => complaints.push([entry.level, entry.text, entry.url].join(' ')))
  for (const domain of ['Page', 'Runtime', 'Log']) await send(`${domain}.enable`)

  async function loading(begin: () => Promise<unknown>): Promise<void> {
    const load = new Promise<void>((resolve) => {
      loaded = resolve
    })
    await begin()
    await load
  }
  async function evaluate(expression: string): Promise<Json> {
    const asked = { expression, awaitPromise: true, returnByValue: true }
    const { result, exceptionDetails } = await send('Runtime.evaluate', asked)
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text)
    return result.value
  }
  return {
    complaints,
    evaluate,
    submit: (selector) => loading(() => evaluate(`document.querySelector('${selector}').submit()`)),
    open: (url) =>
      loading(async () => {
        const { errorText } = await send('Page.navigate', { url })
        if (errorText) throw new Error(`${url}: ${errorText}`)
      }),
  }
}
