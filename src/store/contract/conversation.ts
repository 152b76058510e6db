/** Sessions and what was said in them. */
import type { Message, MessageInput, Usage } from '../../chat/message.ts'
import type { ModelSettings } from '../../provider.ts'
import type { Page, PageRequest, Scope } from './scope.ts'

interface NewSession {
  id: string
  owner: string
  provider: string
  model: string
  credential_id: string | null
  instructions: string
  settings: ModelSettings
  title: string | null
  metadata: Record<string, unknown>
}
export interface Session extends NewSession {
  tools_revision: number
  active_turn_id: string | null
  usage: Usage
  created_at: string
  updated_at: string
}
export type SessionPatch = Partial<
  Pick<Session, 'provider' | 'model' | 'credential_id' | 'instructions' | 'settings' | 'title' | 'metadata'>
>

export interface Sessions {
  create(session: NewSession): Promise<Session>
  get(scope: Scope, id: string): Promise<Session | null>
  /** A turn's session, with the settings for the model as they were when the turn began. */
  ofTurn(turn: string): Promise<Session | null>
  list(scope: Scope, page: PageRequest): Promise<Page<Session>>
  /** With `provider`, only while that is the session's. */
  update(scope: Scope, id: string, patch: SessionPatch, provider?: string): Promise<Session | null>
  /** Its messages, turns, bindings and executions go with it. `busy` while a turn is not ended. */
  delete(scope: Scope, id: string): Promise<'deleted' | 'busy' | null>
}

export interface NewMessage extends MessageInput {
  id: string
  turn_id: string | null
  incomplete?: true
}
/** Null: the session or message is not there, or not to be seen; `busy`: a turn has not ended. */
export interface Messages {
  /** For people, as is `list`: a text replaces a part that cannot be opened. */
  get(scope: Scope, session: string, id: string): Promise<Message | null>
  /** Ascending by seq. */
  list(scope: Scope, session: string, page: PageRequest): Promise<Page<Message> | null>
  /**
   * Everything after `seq` (0: all), ascending. Throws Unreadable for what does not open; with `told`, a text says so
   * in its place.
   */
  after(session: string, seq: number, lost?: 'told'): Promise<Message[]>
  /** The newest of what `after` gives with `told`, all of which may be too long to be read; null: there is nothing. */
  newest(session: string, seq: number): Promise<Message | null>
  /** As `after`. */
  ofTurn(turn: string, lost?: 'told'): Promise<Message[]>
  append(scope: Scope, session: string, messages: NewMessage[]): Promise<Message[] | 'busy' | null>
  replace(scope: Scope, session: string, id: string, message: MessageInput): Promise<Message | 'busy' | null>
  /** Deleting a message that holds tool calls deletes their results with it. Returns the ids of all deleted messages. */
  delete(scope: Scope, session: string, id: string): Promise<string[] | 'busy' | null>
}
