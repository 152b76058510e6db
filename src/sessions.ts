/** Sessions as callers make and change them: what must fit together before a row is written. */
import type { Bus } from './bus/bus.ts'
import { newId } from './chat/ids.ts'
import type { Config } from './config/config.ts'
import { configuredId } from './connectors/input.ts'
import type { Credentials } from './credentials/credentials.ts'
import { BatonError, invalid, noSession } from './errors.ts'
import type { Caller, SessionTools } from './ports.ts'
import {
  type Connector,
  EVERYONE,
  type Scope,
  type Session,
  type SessionPatch,
  type Store,
} from './store/store.ts'

interface NewSessionInput extends SessionPatch {
  provider: string
  model: string
  /** Ids or names */
  connectors?: string[]
  tool_profile?: unknown
}

/** Verbs throw session_not_found for an unknown id and another owner's. */
export interface Sessions {
  /** Waits for the discovery of its servers, up to the connect budget. Throws invalid_request with `param`. */
  create(caller: Caller, input: NewSessionInput): Promise<Session>
  get(scope: Scope, id: string): Promise<Session>
  /** A new provider needs a model; without a credential the default rule applies to it. */
  update(scope: Scope, id: string, patch: SessionPatch): Promise<Session>
  /** Throws turn_in_progress while a turn is not ended. */
  delete(scope: Scope, id: string): Promise<void>
}

interface SessionDeps {
  store: Pick<Store, 'sessions' | 'connectors'>
  bus: Pick<Bus, 'drop'>
  credentials: Pick<Credentials, 'get'>
  config: Pick<Config, 'toolbox'>
  tools: Pick<SessionTools, 'open'>
}

export function createSessions({ store, bus, credentials, config, tools }: SessionDeps): Sessions {
  async function get(scope: Scope, id: string): Promise<Session> {
    const session = await store.sessions.get(scope, id)
    if (session) return session
    throw noSession(id)
  }

  /** A credential is used for its owner's turns only, so an admin cannot lend one to another's session. */
  async function assertCredential(owner: string, id: string, provider: string): Promise<void> {
    const credential = await credentials.get({ owner, admin: false }, id)
    const why = !credential
      ? `No credential has the id ${id}.`
      : credential.provider !== provider
        ? `Credential ${id} is for ${credential.provider}, not for ${provider}.`
        : null
    if (why) throw invalid('credential_id', why)
  }

  /**
   * The configuration's `auto` servers, found by id, since the owner may have a server of the same name; then those
   * asked for.
   */
  async function connectorsOf(owner: string, names: readonly string[]): Promise<Connector[]> {
    const scope = { owner, admin: false }
    const auto = config.toolbox.mcps.filter(({ bind }) => bind === 'auto')
    const bound = await Promise.all(auto.map(({ name }) => store.connectors.get(scope, configuredId(name))))
    const found = new Map(bound.flatMap((connector) => (connector ? [[connector.name, connector]] : [])))
    for (const [i, name] of names.entries()) {
      const param = `connectors[${i}]`
      const connector = await store.connectors.find(scope, name)
      if (!connector) throw invalid(param, `No connector ${name} exists.`)
      const holder = found.get(connector.name) ?? connector
      if (holder.id !== connector.id) throw new BatonError('name_taken', sharedName(connector), { param })
      found.set(connector.name, connector)
    }
    return [...found.values()]
  }

  async function create(caller: Caller, input: NewSessionInput): Promise<Session> {
    if (input.tool_profile !== undefined) {
      throw new BatonError('not_available', 'Tool profiles do not exist yet; leave tool_profile out.', {
        param: 'tool_profile',
      })
    }
    const { owner } = caller
    if (input.credential_id) await assertCredential(owner, input.credential_id, input.provider)
    const connectors = await connectorsOf(owner, input.connectors ?? [])
    const session = await store.sessions.create({
      id: newId('ses'),
      owner,
      provider: input.provider,
      model: input.model,
      credential_id: input.credential_id ?? null,
      instructions: input.instructions ?? '',
      settings: input.settings ?? {},
      title: input.title ?? null,
      metadata: input.metadata ?? {},
    })
    try {
      await tools.open(session, connectors)
    } catch (thrown) {
      // The caller gets an error: nobody would know of the session.
      await store.sessions.delete(caller, session.id).catch(() => {})
      if (!isMoved(thrown)) throw thrown
      return create(caller, input)
    }
    return get(caller, session.id)
  }

  async function update(scope: Scope, id: string, input: SessionPatch): Promise<Session> {
    const session = await get(scope, id)
    const provider = input.provider ?? session.provider
    const patch: SessionPatch = { ...input }
    if (provider !== session.provider) {
      if (input.model === undefined) {
        throw invalid('model', 'A new provider needs a model of its own.')
      }
      patch.credential_id = input.credential_id ?? null
    }
    if (input.credential_id) await assertCredential(session.owner, input.credential_id, provider)
    // Null: the session is gone, or got another provider since. The provider decides what this patch may be.
    return (await store.sessions.update(scope, id, patch, session.provider)) ?? update(scope, id, input)
  }

  async function remove(scope: Scope, id: string): Promise<void> {
    // The session is deleted even if the bus is away: its log goes by itself in time.
    const endStreams = () => bus.drop(id).catch(() => {})
    const done = await store.sessions.delete(scope, id).catch(async (thrown: unknown) => {
      // Perhaps only the store's answer was lost: a repeat finds no session.
      if ((await store.sessions.get(EVERYONE, id)) === null) await endStreams()
      throw thrown
    })
    if (done === null) throw noSession(id)
    if (done === 'busy') throw await busyError(store, scope, id)
    await endStreams()
  }

  return { create, get, update, delete: remove }
}

/** A server was deleted or renamed since it was looked up: the request has to be tried again. */
const isMoved = (thrown: unknown): boolean =>
  thrown instanceof BatonError && ['connector_not_found', 'name_taken'].includes(thrown.code)

const sharedName = ({ id, name }: Connector) =>
  `Two servers of the session would be named ${name}. Rename yours, or open the session without ${id} and bind that with an alias.`

/** The error for whoever would delete a session, or change its history, while a turn of it is open. */
export async function busyError(
  store: Pick<Store, 'sessions'>,
  scope: Scope,
  id: string,
): Promise<BatonError> {
  const session = await store.sessions.get(scope, id)
  return new BatonError(
    'turn_in_progress',
    'A turn of this session has not ended; wait for it or cancel it first.',
    { details: { active_turn_id: session?.active_turn_id ?? null } },
  )
}
