/** Connectors, and what is remembered of their tools. */
import { noted } from './audit.ts'
import { connectorGone, createBindings, type StoredConnector, toConnector } from './bindings.ts'
import { createClaims } from './claims.ts'
import {
  type Db,
  matched,
  type Param,
  type Queries,
  type Querying,
  sureValue,
  value,
  values,
  violated,
} from './db.ts'
import { document, record } from './json.ts'
import { PAGE_BYTES, readCursor, toPage } from './page.ts'
import { bulkOf, seenBy, setList, visibleTo, withinBytes } from './sql.ts'
import type { Connector, Connectors, NewConnector, Scope } from './store.ts'

/** What a patch may write. */
const PATCHABLE = {
  name: 'text',
  transport: 'text',
  url: 'text',
  command: 'text',
  args: 'json',
  auth: 'json',
  mode: 'text',
  default_tool_config: 'json',
  allow_tools: 'json',
  deny_tools: 'json',
  require_approval: 'text',
  trust_annotations: 'boolean',
  pin: 'text',
  secret: 'bytea',
} as const
const COLUMNS = { id: 'text', owner: 'text', origin: 'text', ...PATCHABLE } as const satisfies Record<
  keyof NewConnector,
  string
>
type Column = keyof typeof COLUMNS

/** The sort key of the list */
const PLACE = /^(api|config)-([\w-]{1,200})$/
/** An owner sees their own and the configuration's. */
const SEEN = `($2::text is null or owner = $2 or origin = 'config')`

export function createConnectors(db: Db): Connectors {
  return {
    ...rows(db),
    ...createClaims(db, 'connector', toConnector),
    ...createBindings(db),
    ...toolMemory(db),
  }
}

async function one(queries: Querying, text: string, params: readonly Param[]): Promise<Connector | null> {
  const found = await value<StoredConnector>(queries, text, params)
  return found && toConnector(found)
}

function rows(db: Db) {
  return {
    async create(connector, entry) {
      const { columns, marks, params } = insertion(connector)
      params.push(connector.name)
      const text = `insert into connector as c (${columns}) select ${marks}
         where not exists (select from connector where origin = 'config' and name = $${params.length})
         returning connector_json(c)`
      return (await orNameTaken(one(db, ...noted(text, params, entry)))) ?? 'name_taken'
    },
    get: (scope, id) =>
      one(db, `select connector_json(c) from connector c where id = $1 and ${SEEN}`, [id, visibleTo(scope)]),
    find: ({ owner }, idOrName) =>
      one(
        db,
        `select found from (
           select 1 as place, connector_json(c) as found from connector c
            where id = $1 and (owner = $2 or origin = 'config')
           union all
           select 2, connector_json(c) from connector c where origin = 'api' and owner = $2 and name = $1
           union all
           select 3, connector_json(c) from connector c where origin = 'config' and name = $1
         ) all_ways order by place limit 1`,
        [idOrName, owner],
      ),
    /** The configuration's are the oldest, whatever their ids: they were there before any caller. */
    async list(scope, page) {
      const [, origin = null, after = null] = PLACE.exec(readCursor('connectors', page, PLACE) ?? '') ?? []
      const of = bulkOf('connector')
      const listed = `
        (select ${of}, 1 as place from connector
          where origin = 'api' and ${seenBy(scope, 2)} and ($1::text is null or $4::text = 'api' and id < $1)
          order by id desc limit $3)
        union all
        (select ${of}, 0 from connector
          where origin = 'config' and ($1::text is null or $4::text = 'api' or id < $1)
          order by id desc limit $3)
        order by place desc, id desc limit $3`
      const found = await values<StoredConnector | null>(
        db,
        withinBytes('connector', listed, 'place desc, id desc', '$5'),
        [after, visibleTo(scope), page.limit + 1, origin, page.bytes ?? PAGE_BYTES],
      )
      const rows = found.map((stored) => stored && toConnector(stored))
      return toPage('connectors', page, rows, ({ origin, id }) => `${origin}-${id}`)
    },
    update(scope, { id, config_revision, secret }, patch, entry) {
      const params: Param[] = [id, visibleTo(scope), config_revision, secret]
      const set = setList(PATCHABLE, patch, params)
      // Sealed anew at each write, so that equal bytes are the same write.
      const text = `update connector c set ${set}, config_revision = config_revision + 1
         where id = $1 and ($2::text is null or owner = $2) and origin = 'api'
           and config_revision = $3 and secret is not distinct from $4::bytea
         returning connector_json(c)`
      const { name } = patch
      const [whole, given] = noted(text, params, entry)
      if (name === undefined) return one(db, whole, given)
      const renamed = db.transaction(async (queries) =>
        (await meetsAnother(queries, scope, id, name)) ? 'name_beside' : one(queries, whole, given),
      )
      return orNameTaken(renamed)
    },
    delete(scope, id, entry) {
      const text = `delete from connector
         where id = $1 and ($2::text is null or owner = $2) and origin = 'api' returning 1`
      return matched(db, ...noted(text, [id, visibleTo(scope)], entry))
    },
    keep: ({ id, config_revision, secret: before }, secret) =>
      matched(
        db,
        `update connector set secret = $4, secret_version = secret_version + 1
          where id = $1 and config_revision = $2 and secret is not distinct from $3::bytea returning 1`,
        [id, config_revision, before, secret],
      ),
    syncConfig: (connectors) => db.transaction((queries) => syncAll(queries, connectors)),
    async planConfig(connectors) {
      const planned: Connector[] = []
      const undo = new Error('nothing is to be written')
      const trial = db.transaction(async (queries) => {
        planned.push(...(await syncAll(queries, connectors)))
        throw undo
      })
      await trial.catch((thrown: unknown) => {
        if (thrown !== undo) throw thrown
      })
      return planned
    },
  } satisfies Partial<Connectors>
}

async function syncAll(queries: Queries, connectors: readonly NewConnector[]): Promise<Connector[]> {
  // Replicas that start at once take turns.
  await queries.query('lock table connector in share row exclusive mode')
  const names = connectors.map(({ name }) => name)
  await queries.query(`delete from connector where origin = 'config' and name <> all($1::text[])`, [names])
  const synced: Connector[] = []
  for (const connector of connectors) synced.push(await syncOne(queries, connector))
  return synced
}

/** One that did not change keeps its revision; a secret is sealed anew each time, so it does not count. */
async function syncOne(queries: Queries, connector: NewConnector): Promise<Connector> {
  const { columns, marks, params } = insertion({ ...connector, origin: 'config' })
  const visible = (Object.keys(PATCHABLE) as Column[]).filter((column) => column !== 'secret')
  const stored = await sureValue<StoredConnector>(
    queries,
    `insert into connector as c (${columns}) values (${marks})
     on conflict (name) where origin = 'config' do update
       set ${Object.keys(PATCHABLE).map((column) => `${column} = excluded.${column}`)},
           secret_version = c.secret_version + 1,
           config_revision = c.config_revision + case
             when (${visible.map((column) => `c.${column}::text`)})
               is distinct from (${visible.map((column) => `excluded.${column}::text`)}) then 1 else 0 end
     returning connector_json(c)`,
    params,
  )
  return toConnector(stored)
}

/** Columns, placeholders and values of a whole row. */
function insertion(connector: NewConnector): { columns: string; marks: string; params: Param[] } {
  const names = Object.keys(COLUMNS) as Column[]
  const params = names.map((name) => {
    const given = connector[name]
    return COLUMNS[name] === 'json' && given !== null ? document(given) : (given as Param)
  })
  const marks = names.map((name, i) => `$${i + 1}::${COLUMNS[name]}`)
  return { columns: names.join(', '), marks: marks.join(', '), params }
}

async function orNameTaken<T>(stored: Promise<T>): Promise<T | 'name_taken'> {
  try {
    return await stored
  } catch (err) {
    if (violated(err) === 'connector_name') return 'name_taken'
    throw err
  }
}

/** Whether a session that binds it without an alias has another server of its new name. See bindings.ts. */
async function meetsAnother(
  queries: Queries,
  scope: Scope,
  connector: string,
  name: string,
): Promise<boolean> {
  const now = await value(
    queries,
    'select name from connector where id = $1 and ($2::text is null or owner = $2) for no key update',
    [connector, visibleTo(scope)],
  )
  if (now === null || now === name) return false
  return matched(
    queries,
    `select 1 from binding own
       join binding other on other.session_id = own.session_id and other.connector_id <> own.connector_id
       join connector c on c.id = other.connector_id
      where own.connector_id = $1 and own.alias is null and coalesce(other.alias, c.name) = $2 limit 1`,
    [connector, name],
  )
}

/**
 * The last list of a connection, which is a cache, and accepted definitions, which are not. The connector is locked
 * before any row of these: a delete reaches them with the connector locked, and the two would deadlock.
 */
function toolMemory(db: Db) {
  return {
    async saveList(key, connector, list) {
      await db.query(
        `with held as (
           select id, config_revision from connector where id = $2 for key share
         ), gone as (
           delete from tool_list t using held c
            where t.connector_id = c.id and t.key not in ($1, c.id || '@' || c.config_revision)
         )
         insert into tool_list (key, connector_id, list)
         select $1, id, $3::json from held
         on conflict (key) do update
           set list = excluded.list, connector_id = excluded.connector_id, updated_at = clock_timestamp()`,
        [key, connector, document(list)],
      )
    },
    loadList: (key) => value<unknown>(db, 'select list from tool_list where key = $1', [key]),
    pinFirst(connector, tools) {
      const pins = tools.map(({ definition, ...rest }) => ({ ...rest, definition: document(definition) }))
      return values<string>(
        db,
        `insert into tool_pin (connector_id, tool, hash, definition, accepted_by)
         select c.id, p.tool, p.hash, p.definition::json, 'first use'
           from json_to_recordset($2::json) as p (tool text, hash text, definition text)
           join connector c on c.id = $1
         order by p.tool for key share of c
         on conflict do nothing returning tool`,
        [connector, record(pins)],
      )
    },
    pins: (connector, tools) =>
      db.query(
        'select tool, hash, definition from tool_pin where connector_id = $1 and tool = any($2::text[]) order by tool',
        [connector, tools],
      ),
    async pin(connector, tool, hash, definition, by, entry) {
      const isPinned = await matched(
        db,
        `with touched as (
           update connector set updated_at = clock_timestamp() where id = $1 returning id
         ), noted as (
           insert into audit (owner, act, subject, details)
           select $6::text, $7::text, id, $8::json from touched where $6::text is not null
         )
         insert into tool_pin (connector_id, tool, hash, definition, accepted_by)
         select id, $2, $3, $4::json, $5 from touched
         on conflict (connector_id, tool) do update
           set hash = excluded.hash, definition = excluded.definition,
               accepted_by = excluded.accepted_by, accepted_at = clock_timestamp()
         returning 1`,
        [
          connector,
          tool,
          hash,
          document(definition),
          by,
          entry?.owner ?? null,
          entry?.act ?? null,
          entry ? document(entry.details) : null,
        ],
      )
      if (!isPinned) throw connectorGone()
    },
  } satisfies Partial<Connectors>
}
