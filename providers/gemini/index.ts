/**
 * Gemini's three deployments: the public API by key, Code Assist by its login, and the public API by the operator's own
 * OAuth client. They share the body, the parser and the classification of failures, and differ in address, envelope and
 * authorization (wire/gemini.md 3 and 9).
 */
import { invalid } from '../../src/errors.ts'
import type { Deployment, ModelRequest, RenderedRequest } from '../../src/provider.ts'
import { present } from '../json.ts'
import { amendRequest } from './amend.ts'
import { bareModel, capabilities, parseModels } from './capabilities.ts'
import { classify } from './classify.ts'
import { createParser } from './parse.ts'
import { declareTools, renderBody, SCHEMA } from './render.ts'

const shared = {
  provider: 'gemini',
  schema: SCHEMA,
  // "At most 512 function declarations can be specified." (5.2)
  toolLimit: 512,
  parser: createParser,
  classify,
  amend: amendRequest,
} as const

const publicApi = {
  ...shared,
  capabilities: (model) => capabilities(model, true),
  declare: (tools) => declareTools(tools, false),
  render: renderPublic,
  models: { path: '/models?pageSize=1000', parse: parseModels },
} satisfies Partial<Deployment>

/** The public API by key. A key together with a bearer token is refused (9.1). */
export const gemini: Deployment = {
  ...publicApi,
  id: 'gemini',
  credential: { kind: 'api_key' },
  authorize: ({ api_key = '' }) => ({ 'x-goog-api-key': api_key }),
}

/** The public API by a token of the operator's own OAuth client, billed to their project. */
export const geminiOauth: Deployment = {
  ...publicApi,
  id: 'gemini-oauth',
  credential: { kind: 'oauth', path: 'public' },
  authorize: ({ access_token = '' }, { quota_project }) => ({
    authorization: `Bearer ${access_token}`,
    ...present({ 'x-goog-user-project': quota_project }),
  }),
}

/** Code Assist: the same body in an envelope that names model and project. It has no list of models. */
export const codeAssist: Deployment = {
  ...shared,
  id: 'code-assist',
  credential: { kind: 'oauth', path: 'code_assist' },
  capabilities: (model) => capabilities(model, false),
  declare: (tools, options) => declareTools(tools, options.dual_declarations),
  render: renderCodeAssist,
  authorize: ({ access_token = '' }) => ({ authorization: `Bearer ${access_token}` }),
}

function renderPublic(request: ModelRequest): RenderedRequest {
  const { body, notes } = renderBody(request, false)
  return {
    path: `/models/${encodeURIComponent(bareModel(request.model))}:streamGenerateContent?alt=sse`,
    headers: request.options.headers,
    // Without `store` the project's settings decide; Code Assist has no such field (9.1).
    body: request.options.unstored ? { ...body, store: false } : body,
    notes,
  }
}

/** Models that Code Assist knows under another name than the public API (8.1). */
const CODE_ASSIST_NAMES: ReadonlyMap<string, string> = new Map([['gemini-3.5-flash', 'gemini-3-flash']])

function renderCodeAssist(request: ModelRequest): RenderedRequest {
  const { body, notes } = renderBody(request, request.options.dual_declarations)
  const model = bareModel(request.model)
  const name = CODE_ASSIST_NAMES.get(model)
  if (name) notes.push(`model: ${model} is called ${name} here`)
  return {
    path: ':streamGenerateContent?alt=sse',
    headers: request.options.headers,
    body: {
      model: name ?? model,
      project: projectOf(request),
      user_prompt_id: promptId(request),
      request: { ...body, session_id: request.session_id },
    },
    notes,
  }
}

/** Without a project's id the backend always answers 500, and a project's number is not its id (3.1, 2.2). */
function projectOf({ credential: { project_id } }: ModelRequest): string {
  if (project_id !== undefined && /[^\d\s]/.test(project_id)) return project_id
  throw invalid(
    'project_id',
    project_id?.trim()
      ? `The credential's project_id ${project_id} is a project number; Code Assist wants the project's id.`
      : 'The credential has no project_id, which Code Assist needs. Its first turn asks Google for one; or create the credential with it.',
  )
}

/** One id for each prompt of the user, the same in all its steps. */
const promptId = ({ session_id, messages }: ModelRequest): string =>
  `${session_id}-${messages.filter((message) => message.role === 'user').length}`
