/**
 * OpenAI's two deployments: the public Responses API with a key, and the same protocol with a ChatGPT login, which
 * accepts fewer fields (wire/openai.md 10).
 */
import type { Deployment } from '../../src/provider.ts'
import { amendRequest } from './amend.ts'
import { chatgptCapabilities, parseChatgptModels, publicCapabilities, schemaProfile } from './capabilities.ts'
import { classifyFailure } from './classify.ts'
import { createParser } from './parse.ts'
import {
  accountHeaders,
  declareTools,
  ORIGINATOR,
  renderChatgpt,
  renderPublic,
  residencyHeader,
} from './render.ts'

/**
 * The Responses API with a key, whichever vendor serves it. `provider` is its id, `vendor` its name in errors. A vendor
 * with models other than OpenAI's needs its own capabilities, and a line in FAMILIES for its models (capabilities.ts).
 */
export const responsesApi = (provider: string, vendor: string): Deployment => ({
  id: provider,
  provider,
  credential: { kind: 'api_key' },
  schema: schemaProfile,
  // The public API's limit (wire/openai.md 5)
  toolLimit: 128,
  capabilities: publicCapabilities,
  declare: declareTools,
  render: renderPublic,
  parser: (context, headers) => createParser(context, vendor, headers),
  classify: (failure) => classifyFailure(failure, vendor),
  amend: amendRequest,
  authorize: ({ api_key = '' }) => ({ authorization: `Bearer ${api_key}` }),
})

export const openai: Deployment = responsesApi('openai', 'OpenAI')

/** The same protocol with a ChatGPT login, on another root: it takes fewer fields and needs the account's header. */
export const chatgpt: Deployment = {
  ...openai,
  id: 'chatgpt',
  credential: { kind: 'oauth' },
  // No known limit.
  toolLimit: null,
  capabilities: chatgptCapabilities,
  render: renderChatgpt,
  // With the account's headers, which the list of models needs, too.
  authorize: ({ access_token = '' }, facts) => ({
    authorization: `Bearer ${access_token}`,
    ...accountHeaders(facts),
    ...residencyHeader(access_token),
  }),
  // The vendor filters the list by the protocol level that the client names; the adapter was written against this one.
  models: { path: '/models?client_version=0.169.0', headers: ORIGINATOR, parse: parseChatgptModels },
}
