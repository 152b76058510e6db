import { once } from 'node:events'
import type { AddressInfo, Server, Socket } from 'node:net'
import type { Test } from 'tap'

/** Lets a server listen on loopback, by default on a free port, and gives the port. `close` ends its connections, too. */
export async function listen(server: Server, port = 0): Promise<{ port: number; close(): Promise<void> }> {
  const sockets = new Set<Socket>()
  server.on('connection', (socket) => {
    sockets.add(socket.on('error', () => {}).on('close', () => sockets.delete(socket)))
  })
  await once(server.listen(port, '127.0.0.1'), 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    close() {
      for (const socket of sockets) socket.destroy()
      return new Promise((closed) => server.close(() => closed()))
    },
  }
}

/** The same for the time of a test. */
export async function listening(t: Test, server: Server): Promise<number> {
  const { port, close } = await listen(server)
  t.teardown(close)
  return port
}
