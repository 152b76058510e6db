/**
 * OpenAI's two deployments: the public Responses API with a key, and the same protocol under a ChatGPT
 * login, where fewer fields are accepted (wire/openai.md 10).
 */
import { BatonError } from '../../src/errors.ts'
import type { Deployment } from '../../src/provider.ts'
import {
  chatgptCapabilities,
  parseChatgptModels,
  parsePublicModels,
  publicCapabilities,
  schemaProfile,
} from './capabilities.ts'
import { classifyFailure, repairRequest } from './classify.ts'
import { createParser } from './parse.ts'
import { accountHeader, declareTools, ORIGINATOR, renderChatgpt, renderPublic } from './render.ts'

const shared = {
  provider: 'openai',
  schema: schemaProfile,
  declare: declareTools,
  parser: createParser,
  classify: classifyFailure,
  repair: repairRequest,
} satisfies Partial<Deployment>

export const openai: Deployment = {
  ...shared,
  id: 'openai',
  credential: { kind: 'api_key' },
  capabilities: publicCapabilities,
  render: renderPublic,
  authorize: ({ api_key }) => bearer(api_key),
  models: { path: '/models', parse: parsePublicModels },
}

export const chatgpt: Deployment = {
  ...shared,
  id: 'chatgpt',
  credential: { kind: 'oauth' },
  capabilities: chatgptCapabilities,
  render: renderChatgpt,
  // The account's header too: the list of models needs it as much as a response does.
  authorize: ({ access_token }, facts) => ({ ...bearer(access_token), ...accountHeader(facts) }),
  // The list is filtered by the protocol level that the client names; this is the one written against.
  models: { path: '/models?client_version=0.169.0', headers: ORIGINATOR, parse: parseChatgptModels },
}

function bearer(token: string | undefined): Record<string, string> {
  if (token) return { authorization: `Bearer ${token}` }
  throw new BatonError('no_credential', 'The OpenAI credential holds no secret; store it again.')
}
