/**
 * A raw MCP server over HTTP in the revision of 2025-11-25 or of 2026-07-28. A test can replace each of its answers. It
 * records every request and checks none.
 */
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import type { Test } from 'tap'
import { listening } from '../../listening.ts'

interface Rpc {
  id?: number | string
  method: string
  // biome-ignore lint/suspicious/noExplicitAny: whatever the client sent, read by assertions only
  params?: any
}

interface Asked {
  http: string
  rpc: Rpc | null
  headers: IncomingHttpHeaders
}

export interface Exchange {
  rpc: Rpc
  request: IncomingMessage
  response: ServerResponse
  /** Answers with a JSON body. */
  reply(result: unknown): void
  fail(code: number, message: string, status?: number, data?: unknown): void
  /** Begins an event stream; the functions write single messages to it. */
  stream(): {
    send(message: object, id?: string): void
    reply(result: unknown): void
    raw(text: string): void
  }
  status(code: number, headers?: Record<string, string>, body?: string): void
}

type Era = 'legacy' | 'modern'
type Answer = (exchange: Exchange) => void

export interface Rig {
  url: string
  asked: Asked[]
  connections(): number
  /** How often a JSON-RPC method, or an HTTP method, has been asked for */
  count(method: string): number
  /** Settles once the method has been asked for `count` times in all. */
  arrival(method: string, count?: number): Promise<Asked>
  /** Replaces the answer to a JSON-RPC method, or to `GET` and `DELETE`. */
  on(method: string, answer: Answer): void
  /** From now on answers in this revision, as after a deploy. */
  become(era: Era): void
  tools: unknown[]
}

export const TOOL = { name: 'tool', description: 'A tool', inputSchema: { type: 'object' } }
const CAPABILITIES = { tools: { listChanged: true } }
const SERVER_INFO = { name: 'rig', version: '1.2.3' }

export const legacyAnswers = (rig: Rig, session?: string): Record<string, Answer> => ({
  'server/discover': ({ fail }) => fail(-32601, 'Method not found'),
  initialize: ({ rpc, reply, response }) => {
    if (session) response.setHeader('mcp-session-id', session)
    reply({
      protocolVersion: rpc.params.protocolVersion,
      capabilities: CAPABILITIES,
      serverInfo: SERVER_INFO,
    })
  },
  'tools/list': ({ reply }) => reply({ tools: rig.tools }),
  'tools/call': ({ reply }) => reply({ content: [{ type: 'text', text: 'ran' }] }),
})

export const modernAnswers = (rig: Rig): Record<string, Answer> => ({
  'server/discover': ({ reply }) =>
    reply({
      resultType: 'complete',
      supportedVersions: ['2026-07-28'],
      capabilities: CAPABILITIES,
      ttlMs: 0,
      cacheScope: 'private',
      _meta: { 'io.modelcontextprotocol/serverInfo': SERVER_INFO },
    }),
  'tools/list': ({ reply }) =>
    reply({ resultType: 'complete', ttlMs: 0, cacheScope: 'private', tools: rig.tools }),
  'tools/call': ({ reply }) => reply({ resultType: 'complete', content: [{ type: 'text', text: 'ran' }] }),
})

export async function startRig(t: Test, era: Era = 'legacy', session?: string): Promise<Rig> {
  const waiting: { method: string; count: number; resolve: (asked: Asked) => void }[] = []
  const replaced = new Map<string, Answer>()
  let connections = 0
  let answers: Record<string, Answer> = {}
  const matches = ({ http, rpc }: Asked, method: string): boolean => http === method || rpc?.method === method
  const server = createServer((request, response) => {
    request.setEncoding('utf8')
    let text = ''
    request.on('data', (chunk: string) => {
      text += chunk
    })
    request.on('end', () => {
      const http = request.method ?? ''
      const asked: Asked = { http, rpc: http === 'POST' ? JSON.parse(text) : null, headers: request.headers }
      rig.asked.push(asked)
      for (const wait of waiting)
        if (matches(asked, wait.method) && rig.count(wait.method) >= wait.count) wait.resolve(asked)
      const name = asked.rpc?.method ?? http
      const answer = replaced.get(name) ?? answers[name] ?? (http === 'POST' ? accept : refuse)
      answer(exchange(asked.rpc ?? { method: http }, request, response))
    })
  })
  server.on('connection', () => connections++)
  const rig: Rig = {
    url: `http://127.0.0.1:${await listening(t, server)}/mcp`,
    asked: [],
    tools: [TOOL],
    connections: () => connections,
    count: (method) => rig.asked.filter((asked) => matches(asked, method)).length,
    arrival(method, count = 1) {
      const seen = rig.asked.filter((asked) => matches(asked, method))
      const last = seen.at(-1)
      if (last && seen.length >= count) return Promise.resolve(last)
      return new Promise((resolve) => waiting.push({ method, count, resolve }))
    },
    on: (method, answer) => void replaced.set(method, answer),
    become(next) {
      answers = next === 'legacy' ? legacyAnswers(rig, session) : modernAnswers(rig)
    },
  }
  rig.become(era)
  return rig
}

/** Begins the channel that the client asked for, and gives what announces a change of the list in it. */
export function beginChannel({ rpc, stream }: Exchange): () => void {
  const { send } = stream()
  const _meta = { 'io.modelcontextprotocol/subscriptionId': rpc.id }
  const params = { notifications: { toolsListChanged: true }, _meta }
  if (rpc.method === 'subscriptions/listen')
    send({ method: 'notifications/subscriptions/acknowledged', params })
  return () => send({ method: 'notifications/tools/list_changed', params: { _meta } })
}

/** For notifications, and answers of the client */
const accept: Answer = ({ status }) => status(202)
const refuse: Answer = ({ status }) => status(405)

function exchange(rpc: Rpc, request: IncomingMessage, response: ServerResponse): Exchange {
  const json = (status: number, body: object): void => {
    response
      .writeHead(status, { 'content-type': 'application/json' })
      .end(JSON.stringify({ jsonrpc: '2.0', id: rpc.id, ...body }))
  }
  return {
    rpc,
    request,
    response,
    reply: (result) => json(200, { result }),
    fail: (code, message, status = 200, data) => json(status, { error: { code, message, data } }),
    status: (code, headers, body) => void response.writeHead(code, headers).end(body),
    stream() {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.flushHeaders()
      const send = (message: object, id?: string): void =>
        void response.write(
          `${id ? `id: ${id}\n` : ''}data: ${JSON.stringify({ jsonrpc: '2.0', ...message })}\n\n`,
        )
      return {
        send,
        reply: (result) => send({ id: rpc.id, result }),
        raw: (text) => void response.write(text),
      }
    },
  }
}
