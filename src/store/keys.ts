/** The gateway's own keys, found by their hash. */
import { noted } from './audit.ts'
import { type Db, matched, sureValue } from './db.ts'
import { document } from './json.ts'
import { ownPage, visibleTo } from './sql.ts'
import type { ApiKey, Keys } from './store.ts'

export function createKeys(db: Db): Keys {
  return {
    async create({ id, hash, owner, name, scopes, hint, expires_at }, entry) {
      const text = `insert into api_key as k (id, hash, owner, name, scopes, hint, expires_at)
         values ($1, $2, $3, $4, $5, $6, $7) returning api_key_json(k)`
      const params = [id, hash, owner, name, document(scopes), hint, expires_at]
      return sureValue<ApiKey>(db, ...noted(text, params, entry))
    },
    async byHash(hash) {
      const [found] = await db.query<{ key: ApiKey; is_expired: boolean }>(
        `select api_key_json(k) as key, coalesce(expires_at <= clock_timestamp(), false) as is_expired
           from api_key k where hash = $1`,
        [hash],
      )
      return found ? { ...found.key, is_expired: found.is_expired } : null
    },
    list: (scope, page) => ownPage(db, ['api_key', 'keys'], scope, page, (row: ApiKey) => row),
    revoke: (scope, id, by) =>
      matched(
        db,
        `with seen as (
           select id from api_key where id = $1 and ($2::text is null or owner = $2)
         ), revoked as (
           update api_key set revoked_at = clock_timestamp()
            where id in (select id from seen) and revoked_at is null
           returning id
         ), noted as (
           insert into audit (owner, act, subject, details) select $3, 'key.revoke', id, '{}' from revoked
         )
         select 1 from seen`,
        [id, visibleTo(scope), by],
      ),
    async used(ids) {
      await db.query(
        // Locked rows are skipped: two replicas that note the same keys in another order would wait for each other, and a
        // key that is being noted needs no second note.
        `update api_key set last_used_at = least(clock_timestamp(), revoked_at, expires_at)
          where id in (select id from api_key where id = any($1::text[]) for no key update skip locked)`,
        [ids],
      )
    },
  }
}
