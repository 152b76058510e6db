/** A process that stands still while it is answered, like one that is paused with its container. */
import { Worker } from 'node:worker_threads'
import type { Test } from 'tap'

const SERVER = `
  const { parentPort } = require('node:worker_threads')
  const server = require('node:http').createServer((request, response) => {
    parentPort.postMessage(0)
    setTimeout(() => response.end('answered'), 50)
  })
  server.listen(0, '127.0.0.1', () => parentPort.postMessage(server.address().port))`

/** Gives the address of a server that runs on; this thread stops for `ms` whenever a request reaches that server. */
export async function suspendedWhenAsked(t: Test, ms: number): Promise<string> {
  const worker = new Worker(SERVER, { eval: true })
  t.teardown(() => worker.terminate())
  const port = await new Promise<number>((resolve) => {
    worker.on('message', (port: number) => {
      if (port > 0) return resolve(port)
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
    })
  })
  return `http://127.0.0.1:${port}`
}
