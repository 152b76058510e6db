import { BatonError } from '../errors.ts'
import { type Db, value } from './db.ts'
import { document } from './json.ts'
import type { Registry, RegistryRow } from './store.ts'

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
    put: async (session, expected, tools, delta) =>
      (await value(
        db,
        `update registry
            set revision = $3, tools = $4::json, delta = $5::json, updated_at = clock_timestamp()
          where session_id = $1 and revision = $2 returning 1`,
        [session, expected, delta.tools_revision, document(tools), document(delta)],
      )) !== null,
  }
}
