/** Credentials: rows for their owners, renewals under a claim. */
import { noted } from './audit.ts'
import { createClaims } from './claims.ts'
import { type Db, matched, type Param, type Queries, type Querying, sureValue, value, values } from './db.ts'
import { bytesOf, document } from './json.ts'
import { ownPage, ownRow, setList, visibleTo } from './sql.ts'
import type { Credential, Credentials, Scope } from './store.ts'

/** As SQL gives it: credential_json in the schema. */
export interface StoredCredential extends Omit<Credential, 'secret'> {
  secret: string
}
export const toCredential = (stored: StoredCredential): Credential => ({
  ...stored,
  secret: bytesOf(stored.secret),
})

const orNull = (found: StoredCredential | null) => found && toCredential(found)

const one = async (db: Querying, text: string, params: Param[]) =>
  orNull(await value<StoredCredential>(db, text, params))

const seen = async (db: Querying, scope: Scope, id: string) =>
  orNull(await ownRow<StoredCredential>(db, 'credential', scope, id))

export function createCredentials(db: Db): Credentials {
  return { ...rows(db), ...createClaims(db, 'credential', toCredential), ...renewing(db) }
}

function rows(db: Db) {
  return {
    create: (credential, entry) =>
      db.transaction(async (queries) => {
        if (credential.is_default) {
          await awaitDefaults(queries, credential)
          await clearDefault(queries, credential)
        }
        const text = `insert into credential as c
             (id, owner, provider, kind, name, state, reason, is_default, hint, facts, expires_at, secret)
           values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) returning credential_json(c)`
        const { id, owner, provider, kind, name, state, reason, is_default, hint, ...rest } = credential
        const known = [id, owner, provider, kind, name, state, reason, is_default, hint]
        const params = [...known, document(rest.facts), rest.expires_at, rest.secret]
        return toCredential(await sureValue<StoredCredential>(queries, ...noted(text, params, entry)))
      }),
    get: (scope, id) => seen(db, scope, id),
    list: (scope, page) => ownPage(db, ['credential', 'credentials'], scope, page, toCredential),
    update: (scope, id, patch, entry) =>
      db.transaction(async (queries) => {
        const before = await seen(queries, scope, id)
        if (!before) return null
        if (patch.is_default) {
          await awaitDefaults(queries, before)
          // A credential that was deleted in between leaves the default where it is.
          const text = 'select 1 from credential where id = $1 for no key update'
          if (!(await matched(queries, text, [id]))) return null
          await clearDefault(queries, before)
        }
        const params: Param[] = [id]
        const set = setList({ name: 'text', state: 'text', is_default: 'boolean' }, patch, params)
        const reason = patch.state === undefined ? '' : ', reason = null'
        const text = `update credential c set ${set}${reason} where id = $1 returning credential_json(c)`
        return one(queries, ...noted(text, params, entry))
      }),
    delete(scope, id, entry) {
      const text = 'delete from credential where id = $1 and ($2::text is null or owner = $2) returning 1'
      return matched(db, ...noted(text, [id, visibleTo(scope)], entry))
    },
    preferred: (owner, provider) => one(db, 'select preferred_credential($1, $2)', [owner, provider]),
  } satisfies Partial<Credentials>
}

type Place = Pick<Credential, 'owner' | 'provider'>

/**
 * A change of the default waits here for any other that is under way, so that there is one default at most. Called
 * before any row is locked.
 */
async function awaitDefaults(queries: Queries, { owner, provider }: Place): Promise<void> {
  await queries.query('select pg_advisory_xact_lock(hashtextextended($1, 0))', [`${provider} ${owner}`])
}

async function clearDefault(queries: Queries, { owner, provider }: Place): Promise<void> {
  await queries.query(
    'update credential set is_default = false where owner = $1 and provider = $2 and is_default',
    [owner, provider],
  )
}

function renewing(db: Db) {
  return {
    due: (providers, seconds) =>
      values<{ id: string; owner: string }>(
        db,
        `select json_build_object('id', id, 'owner', owner) from credential
          where kind = 'oauth' and state = 'active' and provider = any($1)
            and expires_at < (select seconds_from_now($2))
            and (claimed_until is null or claimed_until <= clock_timestamp())
          order by expires_at`,
        [providers, seconds],
      ),
    rotate: (id, version, next) =>
      matched(
        db,
        // A credential that a person has disabled meanwhile stays disabled.
        `update credential
            set secret = $3, hint = $4, expires_at = $5, facts = $6, version = version + 1,
                state = case when state = 'disabled' then state else 'active' end, reason = null,
                updated_at = clock_timestamp()
          where id = $1 and version = $2 returning 1`,
        [id, version, next.secret, next.hint, next.expires_at, document(next.facts)],
      ),
    fail: (id, version, reason, ended) =>
      matched(
        db,
        `update credential set state = 'needs_reauth', reason = $3, updated_at = clock_timestamp()
          where id = $1 and version = $2 and state = 'active'
            and ($4::text is null or expires_at <= clock_timestamp())
         returning 1`,
        [id, version, reason, ended ?? null],
      ),
  } satisfies Partial<Credentials>
}
