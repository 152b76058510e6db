/** The tools of sessions, compared and swapped by revision, for many sessions in one statement. */
import { BatonError } from '../errors.ts'
import { inSlices } from '../within.ts'
import { type StoredConnector, toConnector } from './bindings.ts'
import { type Db, sureValue, value } from './db.ts'
import { document, record } from './json.ts'
import type { Binding, Registry, RegistryGrounds, RegistryRow } from './store.ts'

export function createRegistry(db: Db): Registry {
  return {
    async get(session) {
      const row = await value<RegistryRow>(
        db,
        'select registry_json(r) from registry r where session_id = $1',
        [session],
      )
      // Every session has one from its beginning.
      if (!row) throw new BatonError('session_not_found', 'The session was deleted.')
      return row
    },
    async grounds(known) {
      const { sessions, connectors, pins } = await sureValue<StoredGrounds>(db, GROUNDS, [
        known.map(({ session_id }) => session_id),
        known.map(({ revision }) => String(revision)),
      ])
      const byId = new Map(connectors.map((stored) => [stored.id, toConnector(stored)]))
      const toBinding = ({ connector_id, ...rest }: BoundById): Binding[] => {
        const connector = byId.get(connector_id)
        return connector ? [{ connector, ...rest }] : []
      }
      return {
        sessions: sessions.map((one) => ({ ...one, bindings: one.bindings.flatMap(toBinding) })),
        pins,
      }
    },
    async put(changes) {
      const rows: string[] = []
      for (const { session_id, expected, tools } of changes) {
        const documents = await inSlices(tools, document)
        rows.push(record({ session_id, expected, tools: `[${documents.join(',')}]` }))
      }
      return db.query(PUT, [changes.map(({ session_id }) => session_id), `[${rows.join(',')}]`])
    },
  }
}

type BoundById = Omit<Binding, 'connector'> & { connector_id: string }
/** Each connector once: many sessions bind the same ones, and each may have a hundred kilobytes. */
interface StoredGrounds {
  sessions: (Omit<RegistryGrounds['sessions'][number], 'bindings'> & { bindings: BoundById[] })[]
  connectors: StoredConnector[]
  pins: RegistryGrounds['pins']
}

const GROUNDS = `
  with known as (
    select * from unnest($1::text[], $2::bigint[]) as known (session_id, revision)
  ), bound as (
    select distinct b.connector_id from known k join binding b on b.session_id = k.session_id
  )
  select json_build_object(
    'sessions', (
      select coalesce(json_agg(json_build_object(
               'session_id', r.session_id,
               'registry', case when r.revision <> k.revision then registry_json(r) end,
               'age_ms', extract(epoch from clock_timestamp() - r.updated_at) * 1000,
               'bindings', (
                 select coalesce(json_agg(json_build_object(
                          'connector_id', b.connector_id, 'alias', b.alias, 'off', b.off
                        ) order by b.place), '[]')
                   from binding b where b.session_id = r.session_id
               )
             )), '[]')
        from known k join registry r on r.session_id = k.session_id
    ),
    'connectors', (
      select coalesce(json_agg((select connector_json(c) from connector c where c.id = b.connector_id)), '[]')
        from bound b
    ),
    'pins', (
      select coalesce(json_agg(json_build_object(
               'connector_id', p.connector_id, 'tool', p.tool, 'hash', p.hash
             )), '[]')
        from tool_pin p
       where p.connector_id in (select connector_id from bound)
    )
  )`

// Rows are locked in one order: else writers of overlapping sets would wait for each other for ever.
const PUT = `
  with locked as materialized (
    select session_id from registry where session_id = any($1::text[]) order by session_id for no key update
  )
  update registry r
     set revision = r.revision + 1, tools = c.tools::json, updated_at = clock_timestamp()
    from locked l
    join json_to_recordset($2::json) as c (session_id text, expected bigint, tools text)
      on c.session_id = l.session_id
   where r.session_id = l.session_id and r.revision = c.expected
  returning r.session_id, rfc3339(r.updated_at) as updated_at, (
    select t.id from turn t
     where t.session_id = r.session_id and t.state in ('running', 'awaiting_input') limit 1
  ) as turn_id`
