import { type Db, type Param, value, values } from './db.ts'
import { document, record } from './json.ts'
import { readCursor, toPage } from './page.ts'
import { setList, visibleTo } from './sql.ts'
import type { Session, Sessions } from './store.ts'

export function createSessions(db: Db): Sessions {
  return {
    async create(session) {
      const { settings, metadata, ...rest } = session
      const given = record({ ...rest, settings: document(settings), metadata: document(metadata) })
      const [made] = await values<Session>(db, 'select create_session($1)', [given])
      if (!made) throw new Error('a session was stored but not returned')
      return made
    },
    get: (scope, id) =>
      value<Session>(
        db,
        'select session_json(s) from session s where id = $1 and ($2::text is null or owner = $2)',
        [id, visibleTo(scope)],
      ),
    async list(scope, page) {
      const rows = await values<Session>(
        db,
        `select session_json(s) from session s
          where ($1::text is null or owner = $1) and ($2::text is null or id < $2)
          order by id desc limit $3`,
        [visibleTo(scope), readCursor('sessions', page), page.limit + 1],
      )
      return toPage('sessions', page, rows, (session) => session.id)
    },
    async update(scope, id, patch) {
      const params: Param[] = [id, visibleTo(scope)]
      const set = setList(COLUMNS, patch, params)
      return value<Session>(
        db,
        `update session s set ${set} where id = $1 and ($2::text is null or owner = $2) returning session_json(s)`,
        params,
      )
    },
    delete: (scope, id) =>
      value<'deleted' | 'busy'>(db, 'select delete_session($1, $2)', [visibleTo(scope), id]),
  }
}

const COLUMNS = {
  provider: 'text',
  model: 'text',
  credential_id: 'text',
  instructions: 'text',
  settings: 'json',
  title: 'text',
  metadata: 'json',
} as const
