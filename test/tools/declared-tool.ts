/** A tool as a session's registry has it, its connector, the operator's toolbox, and texts for tests of calls. */
import type { ContentPart } from '../../src/chat/message.ts'
import type { Toolbox } from '../../src/config/config.ts'
import type { Connector, RegistryTool } from '../../src/store/store.ts'

export const SECRET = `ghp_${'a1B2'.repeat(9)}`

export const tool = (over: Partial<RegistryTool> = {}): RegistryTool => ({
  canonical_name: 'srv.read',
  exposed_name: 'srv__read',
  source: 'mcp',
  connector_id: 'con_srv',
  server: 'srv',
  mcp_tool_name: 'read',
  description: '',
  parameters: { type: 'object', properties: {} },
  input_schema: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] },
  annotations: {},
  enabled: true,
  status: 'available',
  reason: null,
  is_blocked: false,
  last_seen_at: null,
  hash: 'h',
  order: 1,
  ...over,
})
export const connector = { id: 'con_srv', name: 'srv', trust_annotations: false } as Connector
export const text = (words: string): ContentPart => ({ type: 'text', text: words })

export const toolbox = (over: Partial<Toolbox>): Toolbox => ({
  maxConcurrent: 10,
  tools: [],
  mcps: [],
  inspect: true,
  ...over,
})
