/** Sessions. A turn asks for its own, and gets it as it was when the turn began. */
import { type Db, type Param, sureValue, value } from './db.ts'
import { document, record } from './json.ts'
import { ownPage, ownRow, setList, visibleTo } from './sql.ts'
import type { Session, SessionPatch, Sessions } from './store.ts'

export function createSessions(db: Db): Sessions {
  return {
    async create(session) {
      const { settings, metadata, ...rest } = session
      const given = record({ ...rest, settings: document(settings), metadata: document(metadata) })
      return sureValue<Session>(db, 'select create_session($1)', [given])
    },
    get: (scope, id) => ownRow<Session>(db, 'session', scope, id),
    async ofTurn(turn) {
      const found = await value<{ session: Session; began_with: Partial<Session> | null }>(
        db,
        `select json_build_object('session', session_json(s), 'began_with', t.began_with)
           from turn t join session s on s.id = t.session_id where t.id = $1`,
        [turn],
      )
      return found && { ...found.session, ...found.began_with }
    },
    list: (scope, page) => ownPage(db, ['session', 'sessions'], scope, page, (row: Session) => row),
    async update(scope, id, patch, provider) {
      const params: Param[] = [id, visibleTo(scope), provider ?? null]
      const set = setList(COLUMNS, patch, params)
      return value<Session>(
        db,
        `update session s set ${set}
          where id = $1 and ($2::text is null or owner = $2) and ($3::text is null or provider = $3)
            and keep_for_turn(id) returning session_json(s)`,
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
} as const satisfies Record<keyof SessionPatch, string>
