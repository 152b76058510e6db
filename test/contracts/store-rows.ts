/** Rows and small things that the store's contract tests share. */
import type { Part } from '../../src/chat/message.ts'
import type {
  AnnouncedEvent,
  Fence,
  Lease,
  NewConnector,
  NewExecution,
  NewMessage,
  OpenTurn,
  Scope,
  Session,
  Step,
  Store,
  TurnEnd,
} from '../../src/store/store.ts'

let made = 0
/** An id that ascends like real ids and is readable in a failure. */
export const id = (prefix: string): string => `${prefix}_${String(++made).padStart(6, '0')}`
export const owner = (): Scope => ({ owner: id('owner'), admin: false })
export const ADMIN: Scope = { owner: 'root', admin: true }
export const STRANGER: Scope = { owner: 'stranger', admin: false }

export const text = (words: string): Part[] => [{ type: 'text', text: words }]
export const message = (words: string, rest: Partial<NewMessage> = {}): NewMessage => ({
  id: id('msg'),
  turn_id: null,
  role: 'user',
  parts: text(words),
  ...rest,
})

export const newSession = (store: Store, scope: Scope): Promise<Session> =>
  store.sessions.create({
    id: id('ses'),
    owner: scope.owner,
    provider: 'acme',
    model: 'acme-1',
    credential_id: null,
    instructions: 'Be kind.',
    settings: {},
    title: null,
    metadata: {},
  })

export const LEASE = { owner: 'replica-1', seconds: 60 }
/** A lease that has lapsed as soon as it is taken. */
export const LAPSED = { owner: 'replica-1', seconds: -1 }

export function openRequest(
  session: string,
  rest: Partial<Omit<OpenTurn, 'turn'>> & { turn?: Partial<OpenTurn['turn']> } = {},
): OpenTurn {
  return {
    on_busy: 'reject',
    queue_limit: 16,
    lease: LEASE,
    message: { id: id('msg') },
    ...rest,
    turn: {
      id: id('turn'),
      session_id: session,
      input: text('Hello'),
      context: [],
      max_steps: 16,
      provider: null,
      model: null,
      idempotency_key: null,
      body_hash: 'hash',
      ...rest.turn,
    },
  }
}

export const COMPLETED: TurnEnd = { state: 'completed', finish_reason: 'stop' }

/** Opens a turn that runs at once. */
export async function startTurn(store: Store, scope: Scope, request: OpenTurn) {
  const opened = await store.turns.open(scope, request)
  if (opened?.kind === 'running') return opened
  throw new Error(`the turn was not opened: ${opened?.kind}`)
}

/** A session with a turn that runs under LEASE, or under the given lease. */
export async function runningTurn(store: Store, scope: Scope, lease = LEASE) {
  const session = await newSession(store, scope)
  const { turn, fence, start } = await startTurn(store, scope, openRequest(session.id, { lease }))
  const message = start?.history.at(-1)
  if (!message) throw new Error('the turn began without its input')
  return { session, turn, fence, message }
}

export const endTurn = (store: Store, fence: Fence, turn: string) =>
  store.turns.commit(fence, { turn_id: turn, end: COMPLETED })

export const usage = (input_tokens: number, output_tokens = 0) => ({
  input_tokens,
  output_tokens,
  reasoning_tokens: 1,
  cached_tokens: 2,
})
export const step = (index: number, rest: Partial<Step> = {}): Step => ({
  index,
  attempt: 1,
  provider: 'acme',
  model: 'acme-1',
  tools_revision: 3,
  tool_count: 2,
  finish_reason: 'stop',
  usage: usage(10, 5),
  started_at: '2026-01-31T12:00:00.123Z',
  ended_at: '2026-01-31T12:00:01.000Z',
  ...rest,
})

export const execution = (turn_id: string, rest: Partial<NewExecution> = {}): NewExecution => ({
  id: id('exec'),
  turn_id,
  step: 0,
  call_id: id('call'),
  tool: 'files.read',
  connector: 'files',
  tools_revision: 4,
  arguments: { z: '\0', a: 1 },
  state: 'started',
  repeatable: false,
  ...rest,
})

/** Reads a list page by page: all its rows, and the number of pages. */
export async function allPages<T>(
  read: (page: {
    limit: number
    cursor?: string
  }) => Promise<{ data: T[]; next_cursor: string | null } | null>,
  limit: number,
): Promise<{ rows: T[]; pages: number }> {
  const rows: T[] = []
  for (let pages = 1, cursor: string | null = null; ; pages++) {
    const page = await read(cursor === null ? { limit } : { limit, cursor })
    rows.push(...(page?.data ?? []))
    cursor = page?.next_cursor ?? null
    if (cursor === null) return { rows, pages }
  }
}

/** The error with which a promise rejects. */
export const rejection = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => new Error('it was expected to fail'),
    (thrown: unknown) => thrown,
  )

export const connector = (scope: Scope, name: string, rest: Partial<NewConnector> = {}): NewConnector => ({
  id: id('con'),
  owner: scope.owner,
  name,
  origin: 'api',
  transport: 'streamable_http',
  url: 'https://mcp.test/',
  command: null,
  args: ['b', 'a'],
  auth: { type: 'none' },
  mode: 'dynamic',
  default_tool_config: { max_instances: 5, timeout: 'PT30S' },
  allow_tools: ['*'],
  deny_tools: [],
  require_approval: 'never',
  trust_annotations: false,
  pin: 'warn',
  secret: new Uint8Array([0, 1, 254, 255]),
  ...rest,
})

export const announced = (turn: string, session_id: string, key: string): AnnouncedEvent => ({
  key,
  event: { type: 'turn.started', session_id, turn_id: turn, step: null, at: '2026-01-31T12:00:00.000Z' },
})
export async function unsaidOf(store: Store, turn: string) {
  const row = (await store.turns.unannounced(1000)).find(({ turn_id }) => turn_id === turn)
  return row ? { ...row, events: await row.events() } : null
}

/** Takes all lost turns, one after the other. */
export async function recoverAll(store: Store, lease: Lease, except: readonly string[] = []) {
  const all = []
  for (
    let one = await store.turns.recover(lease, except);
    one;
    one = await store.turns.recover(lease, except)
  )
    all.push(one)
  return all
}
