import { once } from 'node:events'
import type { AddressInfo, Server, Socket } from 'node:net'
import type { Test } from 'tap'

/** Lets a server listen on a free loopback port, which it gives. The test's end ends the server and its connections. */
export async function listening(t: Test, server: Server): Promise<number> {
  const sockets = new Set<Socket>()
  server.on('connection', (socket) => {
    sockets.add(socket.on('error', () => {}).on('close', () => sockets.delete(socket)))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    return new Promise((closed) => server.close(closed))
  })
  return (server.address() as AddressInfo).port
}
