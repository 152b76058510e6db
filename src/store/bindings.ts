/** Which connectors a session binds, under which names. */
import { BatonError } from '../errors.ts'
import { type Db, matched, type Queries, sureValue, values, violated } from './db.ts'
import { bytesOf } from './json.ts'
import { PAGE_BYTES, readCursor, SEQ, toPage } from './page.ts'
import { bulkOf, pageRow, withinBytes } from './sql.ts'
import type { Binding, Connector, Connectors } from './store.ts'

/** As SQL gives it: connector_json in the schema. */
export interface StoredConnector extends Omit<Connector, 'secret'> {
  secret: string | null
}
export const toConnector = (stored: StoredConnector): Connector => ({
  ...stored,
  secret: bytesOf(stored.secret),
})

/** As SQL gives them: bindings_json in the schema. */
export type StoredBindings = (Omit<Binding, 'connector'> & { connector: StoredConnector })[]
export const toBindings = (stored: StoredBindings): Binding[] =>
  stored.map(({ connector, ...rest }) => ({ connector: toConnector(connector), ...rest }))

/** The connectors of bindings with their revisions, in one text; BOUND is the same in SQL, for a session `$5`. */
export const boundOf = (bindings: readonly Binding[]): string =>
  bindings.map(({ connector: { id, config_revision } }) => `${id}@${config_revision}`).join(' ')
export const BOUND = `
  select coalesce(string_agg(c.id || '@' || c.config_revision, ' ' order by b.place), '')
    from binding b join connector c on c.id = b.connector_id where b.session_id = $5`

export function createBindings(db: Db) {
  return {
    bindings: async (session) =>
      toBindings(await sureValue<StoredBindings>(db, 'select bindings_json($1)', [session])),
    /** By the place of the binding: a cursor stays good after the binding is gone. */
    async listBound(session, page) {
      const listed = `select ${bulkOf('connector')}, alias, place
          from binding join connector on id = connector_id
         where session_id = $1 and ($2::text is null or place < $2::bigint) order by place desc limit $3`
      const shown = `json_build_object('connector', ${pageRow('connector')}, 'alias', alias, 'place', place)`
      const found = await values<{ connector: StoredConnector; alias: string | null; place: number } | null>(
        db,
        withinBytes('connector', listed, 'place desc', '$4', shown),
        [session, readCursor('bindings', page, SEQ), page.limit + 1, page.bytes ?? PAGE_BYTES],
      )
      const { data, next_cursor } = toPage('bindings', page, found, ({ place }) => place)
      const bound = data.map(({ connector, alias }) => ({ connector: toConnector(connector), alias }))
      return { data: bound, next_cursor }
    },
    async bind(session, connector, alias) {
      try {
        return await db.transaction((queries) => bind(queries, session, connector, alias))
      } catch (err) {
        throw orGone(err)
      }
    },
    unbind: (session, connector) =>
      matched(db, 'delete from binding where session_id = $1 and connector_id = $2 returning 1', [
        session,
        connector,
      ]),
    async switchTool(session, connector, tool, isOn) {
      await db.query(
        `update binding set off = array_remove(off, $3) || case when $4::boolean then '{}' else array[$3::text] end
          where session_id = $1 and connector_id = $2`,
        [session, connector, tool, isOn],
      )
    },
    sessionsOf: (connector, limit) =>
      values<string>(
        db,
        `select s.id from binding b join session s on s.id = b.session_id
          where b.connector_id = $1 order by s.updated_at desc, s.id desc limit $2`,
        [connector, limit],
      ),
  } satisfies Partial<Connectors>
}

/**
 * Binds, serialized with others who bind or rename a connector: else neither would see the name that the other takes.
 */
async function bind(
  queries: Queries,
  session: string,
  connector: string,
  alias: string | null,
): Promise<boolean> {
  await queries.query('select 1 from session where id = $1 for no key update', [session])
  // Connectors of the configuration are not locked: they keep their names, and `syncConfig` locks them in an order of
  // its own.
  await queries.query(
    `select 1 from connector
      where origin <> 'config' and id in (
        select $2::identifier union all select connector_id from binding where session_id = $1
      )
      order by id for share`,
    [session, connector],
  )
  return matched(
    queries,
    `insert into binding (session_id, connector_id, alias)
     select $1::text, $2::text, $3::text where not exists (
       select from binding b join connector c on c.id = b.connector_id
        where b.session_id = $1::text and b.connector_id <> $2::text
          and coalesce(b.alias, c.name) = coalesce($3::text, (select name from connector where id = $2::text))
     )
     on conflict (session_id, connector_id) do update set alias = excluded.alias returning 1`,
    [session, connector, alias],
  )
}

/** The session or the connector was deleted in the meantime. */
function orGone(err: unknown): unknown {
  const constraint = violated(err)
  if (constraint === 'binding_session_id_fkey') {
    return new BatonError('session_not_found', 'The session was deleted.', { cause: err })
  }
  return constraint === 'binding_connector_id_fkey' ? connectorGone(err) : err
}

export const connectorGone = (cause?: unknown): BatonError =>
  new BatonError('connector_not_found', 'The connector was deleted.', { cause })
