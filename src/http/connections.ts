/**
 * The server's connections: clients that take nothing are let go, those that ask too much at a time are refused, and all
 * are closed once the server closes.
 */
import type { Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { BatonError } from '../errors.ts'

/** What was sent right before the server closes is read within this time. */
const READ_MS = 100
/**
 * Most requests of a connection that are served at a time; hardly any client sends ahead at all. Node sets to work on all
 * that one packet holds, whoever sends them: 56 kB asked a thousand times for a file of /docs (as CVE-2013-4450).
 */
const MOST_AHEAD = 32
/** How long a request that has begun may take to arrive whole once the server closes, … */
const ARRIVE_MS = 1000
/** … and how long its client may take to read the answer. */
const TAKE_MS = 5000

interface Connection {
  readonly socket: Socket
  /** Answers that are not over: several if requests were sent ahead */
  readonly answers: Set<ServerResponse>
  /** Bytes that it had sent when its last answer was over */
  idleAt: number
}

/**
 * What a client does not take of its answer is held in memory: a client that takes nothing for `stuckMs` is dropped, as on
 * a stream. The server's own limit will not do, since it counts the silence before an answer, too, which may be long.
 * The function that it returns gives the error to answer with if a request was sent too far ahead.
 */
export function watchConnections(
  server: Server,
  closing: AbortSignal,
  stuckMs: number,
): (answer: ServerResponse) => BatonError | undefined {
  const connections = new Map<Socket, Connection>()
  const tooFarAhead = new WeakSet<ServerResponse>()
  server.on('connection', (socket) => {
    const answers = new Set<ServerResponse>()
    connections.set(socket, { socket, answers, idleAt: 0 })
    socket.once('close', () => {
      connections.delete(socket)
      // Node tells only the response whose turn it is. Those to requests that were sent ahead would wait for ever, and
      // their streams be written to.
      for (const answer of answers) if (!answer.socket) answer.destroy().emit('close')
    })
  })
  // Before the app, which may ask about the answer at once.
  server.prependListener('request', ({ socket }, answer) => {
    const connection = connections.get(socket)
    if (!connection) return
    if (connection.answers.size >= MOST_AHEAD) tooFarAhead.add(answer)
    connection.answers.add(answer)
    answer.once('close', () => {
      connection.answers.delete(answer)
      connection.idleAt = socket.bytesRead
      if (closing.aborted) socket.end()
    })
    answer.once('prefinish', () => socket.setTimeout(stuckMs))
    // Before Node gives the connection to the answer that comes next, or its own limit to an idle one.
    answer.prependOnceListener('finish', () => socket.setTimeout(0))
  })
  closeAll(server, connections, closing)
  return (answer) =>
    tooFarAhead.has(answer) ? new BatonError('rate_limited', TOO_FAR_AHEAD, { retryAfter: 1 }) : undefined
}

const TOO_FAR_AHEAD = `More than ${MOST_AHEAD} requests were sent on this connection before their answers came; wait for these.`

/**
 * When Node's server closes, it closes idle connections: also one whose answer is still being sent, or whose next
 * request has not been read yet. For every other connection it waits, whether or not its client does anything, so that
 * one client could keep it from closing. So all of them are closed here.
 */
function closeAll(server: Server, connections: ReadonlyMap<Socket, Connection>, closing: AbortSignal): void {
  const closeIf = (isOver: (connection: Connection) => boolean) => {
    for (const connection of connections.values()) if (isOver(connection)) connection.socket.destroy()
  }
  const closeAfter = (ms: number, isOwed: (answer: ServerResponse) => boolean) =>
    setTimeout(closeIf, ms, ({ answers }: Connection) => ![...answers].some(isOwed)).unref()
  server.closeIdleConnections = () => {}
  closing.addEventListener('abort', () => {
    // What has come by then is read first, also if the event loop is late.
    setTimeout(() => setImmediate(closeIf, isIdle), READ_MS)
    closeAfter(ARRIVE_MS, ({ req }) => req.complete)
    closeAfter(TAKE_MS, ({ writableEnded }) => !writableEnded)
  })
}

const isIdle = ({ socket, answers, idleAt }: Connection): boolean =>
  answers.size === 0 && socket.bytesRead === idleAt
