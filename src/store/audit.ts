/** The audit trail: an entry is written with the change that it records, or alone. */
import { type Db, type Param, values } from './db.ts'
import { document } from './json.ts'
import { readCursor, SEQ, toPage } from './page.ts'
import type { Audit, AuditEntry, AuditRecord } from './store.ts'

/** Adds the audit entry to a statement that returns the row that it changes. */
export function noted(text: string, params: readonly Param[], entry?: AuditEntry): [string, Param[]] {
  if (!entry) return [text, [...params]]
  const [owner, act, subject, details] = [1, 2, 3, 4].map((n) => `$${params.length + n}`)
  const whole = `with done as (${text}), noted as (
       insert into audit (owner, act, subject, details)
       select ${owner}::text, ${act}::text, ${subject}::text, ${details}::json from done
     ) select * from done`
  return [whole, [...params, entry.owner, entry.act, entry.subject, document(entry.details)]]
}

export function createAudit(db: Db): Audit {
  return {
    async write({ owner, act, subject, details }) {
      await db.query('insert into audit (owner, act, subject, details) values ($1, $2, $3, $4)', [
        owner,
        act,
        subject,
        document(details),
      ])
    },
    async list(page) {
      const found = await values<AuditRecord>(
        db,
        `select json_build_object(
                  'id', 'audit_' || lpad(id::text, 15, '0'), 'at', rfc3339(at), 'owner', owner, 'act', act,
                  'subject', subject, 'details', details)
           from audit where ($1::text is null or id < $1::bigint) order by id desc limit $2`,
        [readCursor('audit', page, SEQ), page.limit + 1],
      )
      return toPage('audit', page, found, ({ id }) => Number(id.slice('audit_'.length)))
    },
  }
}
