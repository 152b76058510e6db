/**
 * The contract between Baton and a vendor's wire protocol. A deployment is a pure description: it renders
 * a canonical request into the vendor's body, parses the vendor's stream into ModelEvents, and classifies
 * the vendor's errors. No I/O, clock, randomness or environment; secrets enter only in `authorize`.
 */
import type { ModelEvent } from './chat/event.ts'
import type { MessageInput, Provenance } from './chat/message.ts'
import type { Capabilities } from './chat/repair.ts'
import type { BatonError } from './errors.ts'
import type { SseFrame } from './sse.ts'

export type JsonSchema = Record<string, unknown>

/** A session's settings for the model; absent means the vendor's default (api.md section 4). */
export interface ModelSettings {
  temperature?: number
  top_p?: number
  max_output_tokens?: number
  reasoning?: { effort?: Effort }
  tool_choice?: ToolChoice
  parallel_tool_calls?: boolean
}
export type Effort = 'none' | 'minimal' | 'low' | 'medium' | 'high' | 'xhigh' | 'max'
/** `{name}` is a canonical tool name: the model must call that tool. */
export type ToolChoice = 'auto' | 'none' | 'required' | { name: string }

/** A tool as the model sees it. `parameters` already fits the deployment's schema profile. */
export interface ToolDeclaration {
  /** Exposed name, `^[A-Za-z0-9_-]{1,63}$` */
  name: string
  /** Canonical name, `server.tool` */
  canonical_name: string
  description: string
  parameters: JsonSchema
}

/** The part of JSON Schema that a deployment accepts; src/tools/schema/adapt.ts adapts every tool to it. */
export interface SchemaProfile {
  /** `$ref` into local `$defs`; otherwise references are inlined to a bounded depth */
  refs: boolean
  /** Each argument names the types that it may have; one that may be anything names all of them */
  typedArguments?: true
  /** Below the root, an object that names no property says that it may have any */
  openObjects?: true
  /** What a property name must match; others are renamed reversibly */
  propertyPattern: RegExp
  /** A regular expression that holds this is left out: the vendor cannot read it. Absent: none is left out for that */
  unreadPattern?: RegExp
  /**
   * Whether a keyword is kept; else it is dropped, or put in others: `const` as an enum of one value, `prefixItems` as
   * homogeneous `items`. Absent: all known JSON Schema keywords stay
   */
  takes?(keyword: string): boolean
}

/** A model in the provider's own words, from its list of models or from a refusal; absent fields are unknown. */
export interface ReportedModel {
  id: string
  max_output_tokens?: number
  /** Settings that the model refused, each with the refused value, or `any` */
  refused?: Readonly<Partial<Record<keyof ModelSettings, unknown>>>
  /** OpenAI. False: no readable summary of the reasoning is asked for, since the account may not have one. */
  reasoning_summary?: false
  /** OpenAI. False: it gives out no encrypted reasoning to keep. */
  encrypted_reasoning?: false
  /** OpenAI. False: earlier answers go as plain strings, since the server takes a list only with an id and a status. */
  answer_lists?: false
  /** Gemini. False: calls and results go without ids, since the backend may know none. */
  call_ids?: false
  /** Gemini. False: what a user says after tool results goes into one content with them. */
  results_apart?: false
  /** Gemini. False: it takes no tools; calls and results of the history go as texts. */
  tools?: false
  /** Gemini. False: it takes no instructions; they go as a user's first words. */
  instructions?: false
  /** Gemini. True: it refuses calls that are not signed, as Gemini 3 does. */
  signed_calls?: true
  /** Gemini. True: it refuses words of an answer that are not signed, as Gemini 3 Pro Image does. */
  signed_texts?: true
  /** Anthropic. False: requests do not say what becomes of thinking whose prefix has changed. */
  block_binding?: false
  /** Anthropic. True: an answer that calls tools begins with a thought, if only with a made-up one. */
  thought_calls?: true
  /** Anthropic. False: what the operator says in mid-conversation goes as a user's text. */
  system_messages?: false
  /** Anthropic. Most images and documents in a request */
  max_images?: number
  /** Anthropic. Accepted `thinking.type` values */
  thinking_types?: string[]
  /** Accepted ones; empty: none may be named */
  efforts?: string[]
}

/** The facts of a credential that a request may show; never its secret. */
export interface CredentialFacts {
  id: string | null
  account_id?: string
  /** OpenAI: the workspace is served from FedRAMP's side of the service. */
  fedramp?: string
  project_id?: string
  quota_project?: string
  workspace_id?: string
}

/** What the credential's secret holds, decrypted only at the door that sends it. */
export interface CredentialSecret {
  api_key?: string
  access_token?: string
}

/** The operator's settings for a deployment: `providers.<id>` in the YAML file, and settings of their own. */
export interface DeploymentOptions {
  /** Logins only: extra leading system blocks; empty by default */
  system_blocks: readonly string[]
  /** Logins only: extra headers, their names in lower case; empty by default */
  headers: Readonly<Record<string, string>>
  /** Code Assist only: declare tools in both spellings */
  dual_declarations: boolean
  /** Gemini's public API only: ask it to store nothing of the request */
  unstored: boolean
}

/**
 * Everything one model call needs. `messages` is repaired for this target (src/chat/repair.ts): every tool call is
 * answered by the `tool` message right after it, one result per call, in call order; names are exposed names; ids are
 * legal; `provenance.opaque` is present only where it may go back; media that the target refuses are text already, the
 * types of others are in lower case and without parameters; no notice, no empty part, no empty message. The adapter
 * sees to it that a result says what became of its call, in words if the wire has no field for it, that its structure
 * is shown if it has no text, and that its media are shown, beside it if not in it.
 */
export interface ModelRequest {
  model: string
  instructions: string
  messages: MessageInput[]
  tools: ToolDeclaration[]
  settings: ModelSettings
  session_id: string
  /** This step continues a turn: after tool results, or because the model was not done */
  follow_up: boolean
  reported?: ReportedModel
  credential: CredentialFacts
  options: DeploymentOptions
}

/** Sent by POST. */
export interface RenderedRequest {
  /** Joined to the deployment's base URL; may hold a query */
  path: string
  /** Without authorization and content-type */
  headers: Record<string, string>
  /** Frozen values in it are shared with other requests, and their bytes are kept (src/chat/once.ts) */
  body: Record<string, unknown>
  /** What was left out or changed, in words for `/render`: "temperature: not accepted by this model" */
  notes: string[]
}

export interface ParseContext {
  /** The canonical id for a call: unique in the session, made from the vendor's own if that is legal. */
  callId(vendorId?: string): string
  /** The canonical name behind an exposed one; a name that was not declared comes back as it is. */
  toolName(exposed: string): string
  /** Goes on every part of the message; `opaque`: the part's token, if it has one. */
  provenance(opaque?: string): Provenance
}

/** One model call's stream, frame by frame, up to the event that is its `finish`. */
export interface ModelParser {
  /** Throws a BatonError for an error that the vendor sent inside the stream; the same frame again throws again. */
  push(frame: SseFrame): ModelEvent[]
  /**
   * The body ended without a `finish` so far. Throws `upstream_disconnected` if the stream was not complete. Quotes no
   * part of a frame cut short.
   */
  end(): ModelEvent[]
}

/** A response other than a stream of events: an HTTP error, or a JSON body in place of a stream. */
export interface UpstreamFailure {
  status: number
  headers: Readonly<Record<string, string>>
  body: string
}

export interface Deployment {
  /** Unique: `openai`, `chatgpt`, `anthropic`, `anthropic-oauth`, `gemini`, `code-assist`, … */
  id: string
  /** The public provider id that sessions name */
  provider: string
  /** Which credentials it serves */
  credential: { kind: 'api_key' | 'oauth'; path?: 'code_assist' | 'public' }
  schema: SchemaProfile
  /** Most tools that may be declared in one request; null: no known limit */
  toolLimit: number | null
  capabilities(model: string, reported?: ReportedModel): Capabilities
  /** Tool declarations in the vendor's shape, exactly as `render` sends them. */
  declare(tools: readonly ToolDeclaration[], options: DeploymentOptions): unknown[]
  render(request: ModelRequest): RenderedRequest
  /** `headers` of the response, with which an error in its stream is read */
  parser(context: ParseContext, headers: UpstreamFailure['headers']): ModelParser
  /**
   * Maps a failed response to the catalogue; keeps the vendor's words in `details.upstream`, and in
   * `details.should_retry` whether the vendor says that trying again may help.
   */
  classify(failure: UpstreamFailure): BatonError
  authorize(secret: CredentialSecret, facts: CredentialFacts): Record<string, string>
  /**
   * Statuses of an `upstream_auth` that another access token may cure; absent: 401 alone. Any other is the
   * vendor's word on the account, which stays the same however often its token is renewed.
   */
  renewOn?: readonly number[]
  /**
   * A request to send instead of the refused one (as the vendor documents; e.g. reasoning that the vendor can no longer
   * verify is left out); null when there is none, or the request was amended so already. Called only before the first
   * byte, possibly again for another reason. What a refusal says about the model goes into `reported`, which later
   * requests have, too. Any other amendment is for what this request holds: it is made again for later requests of the
   * same turn.
   */
  amend(failure: UpstreamFailure, request: ModelRequest): ModelRequest | null
  /** The vendor's list of models, if it has more than names: GET path, headers besides authorization, its body read. */
  models?: { path: string; headers?: Record<string, string>; parse(body: unknown): ReportedModel[] }
}
