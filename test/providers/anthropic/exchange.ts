/** Requests and messages as a session of this vendor has them. */
import { anthropic } from '../../../providers/anthropic/index.ts'
import type { WireRequest } from '../../../providers/anthropic/wire.ts'
import type { MessageInput, Part, Provenance, ToolResultPart } from '../../../src/chat/message.ts'
import type { Deployment, ModelRequest, ModelSettings, ToolDeclaration } from '../../../src/provider.ts'
import { declared, requestOf, resultOf, said } from '../exchange.ts'

export const origin: Provenance = { provider: 'anthropic', model: 'claude-sonnet-5', credential_id: 'cred_1' }
export const SECRET = { api_key: 'sk-ant-api03-acme-1', access_token: 'sk-ant-oat01-acme-1' }

export const TOOLS = [
  declared('weather.get', { properties: { place: { type: 'string' } }, required: ['place'] }),
  declared('list_files'),
]

export interface Wish {
  model?: string
  messages?: MessageInput[]
  settings?: ModelSettings
  tools?: ToolDeclaration[]
  request?: Partial<ModelRequest>
}

export const requestFor = ({ request, ...wish }: Wish = {}): ModelRequest =>
  requestOf({ model: 'claude-sonnet-4-6', messages: [said('hello')], tools: TOOLS, ...wish, ...request })

export const answered = (...parts: Part[]): MessageInput => ({ role: 'assistant', parts })
export const words = (text: string): Part => ({ type: 'text', text })
export const thought = (text: string, opaque?: string): Part => ({
  type: 'reasoning',
  text,
  provenance: { ...origin, ...(opaque ? { opaque } : {}) },
})
export const called = (call_id: string, args: Record<string, unknown> = {}): Part => ({
  type: 'tool_call',
  call_id,
  name: 'weather__get',
  arguments: args,
})
export const returned = (call_id: string, own: Partial<ToolResultPart> = {}): Part =>
  resultOf({ call_id, name: 'weather__get' }, { content: [{ type: 'text', text: '15 °C' }], ...own })
export const results = (...parts: Part[]): MessageInput => ({ role: 'tool', parts })

export const render = (wish: Wish, deployment: Deployment = anthropic) => {
  const rendered = deployment.render(requestFor(wish))
  // `render` returns a WireRequest; request.test.ts checks this against the vendor's own types.
  return { ...rendered, body: rendered.body as unknown as WireRequest }
}
export const contents = (messages: MessageInput[], wish: Wish = {}) =>
  render({ ...wish, messages }).body.messages.map(({ role, content }) => [
    role,
    content.map(({ type }) => type),
  ])
