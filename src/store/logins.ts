/** Pending logins. Their times are by the database's clock, like those of leases. */
import { type Db, type Param, value } from './db.ts'
import { bytesOf } from './json.ts'
import type { OAuthLogin, OAuthLogins } from './store.ts'

/** As SQL gives it: oauth_login_json in the schema. */
interface StoredLogin extends Omit<OAuthLogin, 'sealed'> {
  sealed: string
}

/** At least so long is a login under way once its answer has come: Google's set-up of an account takes two minutes. */
const FINISH_SECONDS = 300

export function createLogins(db: Db): OAuthLogins {
  const one = async (text: string, params: Param[]): Promise<OAuthLogin | null> => {
    const found = await value<StoredLogin>(db, text, params)
    return found && { ...found, sealed: bytesOf(found.sealed) }
  }
  return {
    create: ({ state_hash, owner, provider, mode, redirect_uri, sealed, seconds }, most) =>
      one(
        `insert into oauth_login as l (state_hash, owner, provider, mode, redirect_uri, sealed, expires_at)
         select $1, $2, $3, $4, $5, $6, seconds_from_now($7)
          where $8 > (select count(*) from oauth_login
                       where owner = $2 and state = 'pending' and expires_at > clock_timestamp())
         returning oauth_login_json(l)`,
        [state_hash, owner, provider, mode, redirect_uri, sealed, seconds, most],
      ),
    get: (hash) => one('select oauth_login_json(l) from oauth_login l where state_hash = $1', [hash]),
    take: ({ state_hash, provider }, sealed) =>
      one(
        `update oauth_login l
            set state = 'taken', sealed = $3, expires_at = greatest(expires_at, seconds_from_now($4))
          where state_hash = $1 and provider = $2
            and (state = 'pending' and expires_at > clock_timestamp() or state = 'taken' and sealed = $3)
         returning oauth_login_json(l)`,
        [state_hash, provider, sealed, FINISH_SECONDS],
      ),
    async finish(hash, result) {
      const [credential, error] = 'error' in result ? [null, result.error] : [result.credential_id, null]
      await db.query(
        `update oauth_login set state = case when $2::text is null then 'failed' else 'done' end,
                credential_id = $2, error = $3
          where state_hash = $1 and state in ('pending', 'taken')`,
        [hash, credential, error],
      )
    },
    poll: (hash, seconds) =>
      one(
        `update oauth_login l set polled_until = seconds_from_now($2)
          where state_hash = $1 and state = 'pending' and expires_at > clock_timestamp()
            and (polled_until is null or polled_until <= clock_timestamp())
         returning oauth_login_json(l)`,
        [hash, seconds],
      ),
    async prune(seconds) {
      await db.query('delete from oauth_login where expires_at < seconds_from_now($1)', [-seconds])
    },
  }
}
