/**
 * An MCP server over streamable HTTP (2025-11-25) that a test controls: tools come and go at run
 * time, run what the test says, count every call; the server announces, hangs, lies or falls silent on
 * demand. Written without an SDK, so that it can also do what no SDK allows.
 */
import { randomUUID } from 'node:crypto'
import { EventEmitter, once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { text } from 'node:stream/consumers'
import { listen } from '../listening.ts'

type Json = Record<string, unknown>

interface ToolCall {
  args: Json
  /** Aborted when the client cancels the request or its connection goes */
  signal: AbortSignal
  progress(progress: number, total?: number, message?: string): void
}

export interface TestTool {
  description?: string
  inputSchema?: unknown
  annotations?: Json
  /** A result as `tools/call` gives it. A throw becomes a result with `isError`. Absent: `<name> ran`. */
  run?(call: ToolCall): Json | Promise<Json>
}

type Mood = 'well' | 'silent' | 'refusing'

export interface ToolServer {
  url: string
  /** Listed in this order; change it freely, then `announce` */
  tools: Map<string, TestTool>
  /** Every `tools/call` that arrived, in order */
  calls: { tool: string; args: Json }[]
  count(tool: string): number
  /** Settles once the tool has been called so often in all. */
  called(tool: string, times?: number): Promise<void>
  /** Sends `notifications/tools/list_changed` to every open channel; resolves once one is open. */
  announce(): Promise<void>
  /** `silent`: takes requests and never answers. `refusing`: answers 503. */
  mood(mood: Mood): void
  close(): Promise<void>
}

export const textResult = (text: string): Json => ({ content: [{ type: 'text', text }] })

/** A tool that answers with the text that it is given. */
export const ECHO: TestTool = {
  inputSchema: { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] },
  run: ({ args }) => textResult(String(args.text)),
}

export async function startToolServer(tools: Record<string, TestTool> = {}): Promise<ToolServer> {
  const state: State = {
    tools: new Map(Object.entries(tools)),
    calls: [],
    arrivals: new EventEmitter(),
    sessions: new Set(),
    channels: new Set(),
    running: new Map(),
    mood: 'well',
    onChannel: () => {},
  }
  const server = createServer((request, response) => {
    serve(state, request, response).catch(() => response.destroy())
  })
  const { port, close } = await listen(server)
  const count = (tool: string) => state.calls.filter((call) => call.tool === tool).length
  return {
    url: `http://127.0.0.1:${port}/mcp`,
    tools: state.tools,
    calls: state.calls,
    count,
    async called(tool, times = 1) {
      while (count(tool) < times) await once(state.arrivals, 'call')
    },
    async announce() {
      if (state.channels.size === 0) {
        await new Promise<void>((resolve) => {
          state.onChannel = resolve
        })
      }
      for (const channel of state.channels) notify(channel, 'notifications/tools/list_changed', {})
    },
    mood(mood) {
      state.mood = mood
    },
    close,
  }
}

interface State {
  tools: Map<string, TestTool>
  calls: { tool: string; args: Json }[]
  /** Emits `call` */
  arrivals: EventEmitter
  sessions: Set<string>
  channels: Set<ServerResponse>
  /** Calls in flight by request id */
  running: Map<unknown, AbortController>
  mood: Mood
  onChannel(): void
}

async function serve(state: State, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const body = await text(request)
  if (state.mood === 'silent') return
  if (state.mood === 'refusing') return void response.writeHead(503).end()
  const session = String(request.headers['mcp-session-id'] ?? '')
  if (request.method === 'GET') return openChannel(state, session, response)
  if (request.method === 'DELETE') return void response.writeHead(200).end()
  const message = JSON.parse(body) as Json
  if (message.method === 'initialize') return initialize(state, message, response)
  if (!state.sessions.has(session)) {
    const error = { code: -32000, message: session === '' ? 'Bad Request: no session' : 'Session not found' }
    return reply(response, { jsonrpc: '2.0', id: null, error }, session === '' ? 400 : 404)
  }
  if (message.id === undefined) return notified(state, message, response)
  const handler = HANDLERS[String(message.method)]
  if (handler) return handler(state, message, response)
  reply(response, failed(message, -32601, 'Method not found'))
}

function initialize(state: State, message: Json, response: ServerResponse): void {
  const session = randomUUID()
  state.sessions.add(session)
  response.setHeader('mcp-session-id', session)
  const result = {
    protocolVersion: '2025-11-25',
    capabilities: { tools: { listChanged: true } },
    serverInfo: { name: 'test-tools', version: '1.0.0' },
  }
  reply(response, { jsonrpc: '2.0', id: message.id, result })
}

function openChannel(state: State, session: string, response: ServerResponse): void {
  if (!state.sessions.has(session)) return void response.writeHead(404).end()
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  response.flushHeaders()
  state.channels.add(response)
  response.once('close', () => state.channels.delete(response))
  state.onChannel()
}

function notified(state: State, message: Json, response: ServerResponse): void {
  const params = (message.params ?? {}) as Json
  if (message.method === 'notifications/cancelled') state.running.get(params.requestId)?.abort()
  response.writeHead(202).end()
}

const HANDLERS: Record<
  string,
  (state: State, message: Json, response: ServerResponse) => void | Promise<void>
> = {
  ping: (_, message, response) => reply(response, { jsonrpc: '2.0', id: message.id, result: {} }),
  'tools/list'(state, message, response) {
    const tools = [...state.tools].map(([name, tool]) => ({
      name,
      description: tool.description ?? `The tool ${name}`,
      inputSchema: tool.inputSchema ?? { type: 'object', properties: {} },
      ...(tool.annotations ? { annotations: tool.annotations } : {}),
    }))
    reply(response, { jsonrpc: '2.0', id: message.id, result: { tools } })
  },
  'tools/call': call,
}

async function call(state: State, message: Json, response: ServerResponse): Promise<void> {
  const {
    name,
    arguments: args = {},
    _meta,
  } = message.params as { name: string; arguments?: Json; _meta?: Json }
  const tool = state.tools.get(name)
  state.calls.push({ tool: name, args })
  state.arrivals.emit('call')
  if (!tool) return reply(response, failed(message, -32602, `Unknown tool: ${name}`))
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  response.flushHeaders()
  const abort = new AbortController()
  state.running.set(message.id, abort)
  response.once('close', () => abort.abort())
  const progress: ToolCall['progress'] = (done, total, words) => {
    if (_meta?.progressToken === undefined) return
    notify(response, 'notifications/progress', {
      progressToken: _meta.progressToken,
      progress: done,
      ...(total === undefined ? {} : { total }),
      ...(words === undefined ? {} : { message: words }),
    })
  }
  const result = await Promise.resolve()
    .then(() => tool.run?.({ args, signal: abort.signal, progress }) ?? textResult(`${name} ran`))
    .catch((thrown: unknown) => ({ ...textResult(String(thrown)), isError: true }))
  state.running.delete(message.id)
  response.end(`event: message\ndata: ${JSON.stringify({ jsonrpc: '2.0', id: message.id, result })}\n\n`)
}

const failed = (message: Json, code: number, words: string): Json => ({
  jsonrpc: '2.0',
  id: message.id,
  error: { code, message: words },
})

function reply(response: ServerResponse, message: Json, status = 200): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(message))
}

const notify = (channel: ServerResponse, method: string, params: Json) =>
  channel.write(`event: message\ndata: ${JSON.stringify({ jsonrpc: '2.0', method, params })}\n\n`)
