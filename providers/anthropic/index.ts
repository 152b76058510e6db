/**
 * Anthropic's Messages API in its two deployments: by API key, and by login (Console OAuth, workload
 * federation, Claude Code's), which differ in headers, path and the operator's own blocks and headers.
 * Pure; wire/anthropic.md is the source of every fact in this folder.
 */
import type { CredentialFacts, Deployment, SchemaProfile } from '../../src/provider.ts'
import { present } from '../json.ts'
import { amendRequest } from './amend.ts'
import { capabilitiesOf, parseModels } from './capabilities.ts'
import { classify } from './classify.ts'
import { createParser } from './parse.ts'
import { declareTools, OAUTH_BETA, renderRequest, VERSION_HEADER } from './render.ts'

/**
 * JSON Schema 2020-12 with `type: object` at the root and no combinator beside it (wire/anthropic.md 5). The whole
 * request is refused for property names of another form (anthropics/claude-code#79418), and for the tuple of older
 * drafts, `items: [..]` (openclaw/openclaw#98588). An argument that names no type arrives as a text, whatever Claude
 * meant: the JSON of an object, say (anthropics/claude-code#82652, ablative-io/aion#82, inkeep/agents#1285).
 */
const SCHEMA: SchemaProfile = {
  refs: true,
  typedArguments: true,
  propertyPattern: /^[a-zA-Z0-9_.-]{1,64}$/,
}

const MODELS = { path: '/v1/models?limit=1000', headers: VERSION_HEADER, parse: parseModels }

/**
 * Only a login, or a key linked to a person or a service account, that may act in several workspaces has one
 * (wire/anthropic.md 2.2; cloudflare/cloudflare-os#402).
 */
const workspaceOf = ({ workspace_id }: CredentialFacts): Record<string, string> =>
  present({ 'anthropic-workspace-id': workspace_id })

/**
 * The Messages API with a key, whichever vendor serves it: its provider id, and its name in errors. Models that are no
 * Claudes count as FOREIGN (capabilities.ts); those that take more, or less, need a family of their own there.
 */
export const messagesApi = (provider: string, vendor: string): Deployment => ({
  id: provider,
  provider,
  credential: { kind: 'api_key' },
  schema: SCHEMA,
  // No limit is published and more than 300 were seen to work (wire/anthropic.md 4.5).
  toolLimit: null,
  capabilities: capabilitiesOf,
  declare: declareTools,
  render: (request) => renderRequest(request, false),
  parser: (context, headers) => createParser(context, vendor, headers),
  classify: (failure) => classify(failure, vendor),
  amend: amendRequest,
  authorize: ({ api_key = '' }, facts) => ({ 'x-api-key': api_key, ...workspaceOf(facts) }),
  models: MODELS,
})

export const anthropic: Deployment = messagesApi('anthropic', 'Anthropic')

/** The Messages API by bearer token, with the operator's own blocks and headers. */
export const anthropicOauth: Deployment = {
  ...anthropic,
  id: 'anthropic-oauth',
  credential: { kind: 'oauth' },
  render: (request) => renderRequest(request, true),
  // A revoked login is a 403 (wire/anthropic.md 1.6).
  renewOn: [401, 403],
  authorize: ({ access_token = '' }, facts) => ({
    authorization: `Bearer ${access_token}`,
    ...workspaceOf(facts),
  }),
  models: { ...MODELS, headers: { ...VERSION_HEADER, 'anthropic-beta': OAUTH_BETA } },
}
