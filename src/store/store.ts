/**
 * The store's contract: verbs of the domain, no SQL, no connection. One implementation serves the embedded
 * PostgreSQL and a server alike. Every verb that a caller's id can steer takes a Scope and applies it in
 * its own query, so that no route can forget it; the engine's verbs take a Fence instead, and a stale
 * owner's write fails. Times are RFC 3339 strings.
 */
import type { Audit, Credentials, Keys, OAuthLogins } from './contract/access.ts'
import type { Connectors, Registry } from './contract/connectors.ts'
import type { Messages, Sessions } from './contract/conversation.ts'
import type { Executions } from './contract/ledger.ts'
import type { Sealed, Settings } from './contract/sealed.ts'
import type { Turns } from './contract/turns.ts'

export * from './contract/access.ts'
export * from './contract/connectors.ts'
export * from './contract/conversation.ts'
export * from './contract/ledger.ts'
export * from './contract/scope.ts'
export * from './contract/sealed.ts'
export * from './contract/turns.ts'

export interface Store {
  sessions: Sessions
  messages: Messages
  turns: Turns
  connectors: Connectors
  registry: Registry
  executions: Executions
  credentials: Credentials
  logins: OAuthLogins
  keys: Keys
  sealed: Sealed
  audit: Audit
  settings: Settings
  /** Cheap: the store answers and has the code's schema, or a newer one. */
  ready(): Promise<void>
  close(): Promise<void>
}
