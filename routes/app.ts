/** What every route file is written against: the app with its schema types, and the parts that it calls. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { FastifyBaseLogger, FastifyInstance, FastifyTypeProvider, RawServerDefault } from 'fastify'
import type { Logger } from 'pino'
import type { Static, TSchema } from 'typebox'
import type { Auth } from '../src/auth.ts'
import type { Bus } from '../src/bus/bus.ts'
import type { Connectors } from '../src/connectors.ts'
import type { Credentials } from '../src/credentials/credentials.ts'
import type { KeyRotation } from '../src/credentials/key-rotation.ts'
import type { Logins } from '../src/credentials/logins.ts'
import type { ErrorCode } from '../src/errors.ts'
import type { Streams } from '../src/http/sse.ts'
import type { Caller, SessionTools, Turns } from '../src/ports.ts'
import type { Sessions } from '../src/sessions.ts'
import type { Store } from '../src/store/store.ts'
import type { Metrics } from '../src/telemetry.ts'

/** Requests are typed by their schemas; tests hold replies to theirs. */
interface SchemaTypes extends FastifyTypeProvider {
  validator: this['schema'] extends TSchema ? Static<this['schema']> : unknown
  serializer: unknown
}

/** Fastify with request types taken from the TypeBox schemas. */
export type App = FastifyInstance<
  RawServerDefault,
  IncomingMessage,
  ServerResponse,
  FastifyBaseLogger,
  SchemaTypes
>

declare module 'fastify' {
  interface FastifyRequest {
    /** Set on every route below /v1 that needs a key */
    caller: Caller
  }
  interface FastifyContextConfig {
    /** Admins only */
    admin?: boolean
    /** No key needed */
    open?: boolean
  }
  interface FastifySchema {
    /** How it may fail, besides unknown ids in its path and what any call may answer: for the OpenAPI document */
    errors?: readonly ErrorCode[]
  }
}

/** What routes call; each takes the parts that it needs. */
export interface RouteDeps {
  store: Store
  bus: Bus
  auth: Auth
  sessions: Sessions
  turns: Turns
  tools: SessionTools
  connectors: Connectors
  credentials: Credentials
  /** Re-encrypts everything at rest with the first encryption key. */
  rotateEncryption(by: string): Promise<KeyRotation>
  logins: Logins
  /** For each URL of media that a caller gives: address_not_allowed if it is refused, else null (src/guard.ts) */
  refusals(urls: readonly string[]): Promise<(Error | null)[]>
  metrics: Pick<Metrics, 'contentType' | 'text' | 'httpAnswered' | 'streamOpened' | 'streamClosed'>
  streams: Streams
  log: Logger
  isDraining(): boolean
}
