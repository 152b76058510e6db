/**
 * What PostgreSQL does not do in single-user mode. Without checkpoints its write-ahead log would grow for as long as
 * the process lives, and after a kill the next start would go through all of it. Without vacuums the room of deleted
 * rows would never be used again.
 */
import { statfsSync } from 'node:fs'
import type { PGlite } from '@electric-sql/pglite'

/**
 * PostgreSQL panics if it cannot write its log, as on a full disk. PGlite goes on as if nothing had happened, and never
 * returns from the next statement.
 */
export const isTheEnd = ({ severity }: { severity?: string | undefined }): boolean => severity === 'PANIC'

/** Statements between two looks, each of which costs about one statement */
const LOOK_EVERY = 100
const MOST_LOG = 32 << 20
/** Bytes of the disk that a vacuum must leave free */
const SPARE = 64 << 20
/** A vacuum begins this long after the last statement: most likely nobody is about to ask */
const QUIET_MS = 300
/** How long a vacuum waits at most for such a moment */
const PATIENCE_MS = 600_000

/**
 * How long the log is, and the table that needs a vacuum most. It needs one for its dead rows, counted much as a
 * server's autovacuum does, or for rows that are 200 million transactions old: at two billion, old rows would become
 * invisible. The counts are lost when a process ends, so each process vacuums all tables once.
 */
const LOOK = `
  select pg_wal_lsn_diff(pg_current_wal_lsn(), redo_lsn)::float8 as bytes, (
    select oid::regclass::text from pg_class
     where relkind in ('r', 't') and (
       pg_stat_get_dead_tuples(oid) > 1000 + pg_stat_get_live_tuples(oid) / 10
       or age(relfrozenxid) > 200000000
       or relkind = 'r' and relnamespace = 'public'::regnamespace
          and pg_stat_get_vacuum_count(oid) = 0 and pg_relation_size(oid) > 0
     )
     order by pg_stat_get_dead_tuples(oid) desc limit 1
  ) as worn from pg_control_checkpoint()`
const SIZE = 'select pg_total_relation_size($1::regclass)::float8 as bytes'
/** Plans would go for ever by the size that a vacuum notes while a table is small: see SETTINGS in pglite-worker.ts. */
const FORGET_SIZES = `
  select pg_clear_relation_stats('public', relname::text) from pg_class
   where relnamespace = 'public'::regnamespace
     and (oid = $1::regclass or oid in (select indexrelid from pg_index where indrelid = $1::regclass))`

/** After each statement, once its caller has the answer, looks at what is due. */
export function createMaintenance(
  db: PGlite,
  folder: string,
  isFree: () => boolean,
  inLine: (work: () => Promise<void>) => void,
) {
  let count = 0
  let worn: string | null = null
  let wornAt = 0
  let quiet: NodeJS.Timeout | undefined

  async function look(): Promise<void> {
    const { rows } = await db.query<{ bytes: number; worn: string | null }>(LOOK)
    if ((rows[0]?.bytes ?? 0) > MOST_LOG) await db.exec('checkpoint')
    if (worn === null) wornAt = performance.now()
    worn = rows[0]?.worn ?? null
  }

  async function vacuum(): Promise<void> {
    // Inside a transaction it would fail, and the transaction with it.
    if (worn === null || !isFree()) return
    const table = worn
    worn = null
    // A table's first vacuum writes all of it into the log as well, and no checkpoint shortens the log meanwhile.
    const { rows } = await db.query<{ bytes: number }>(SIZE, [table])
    const bytes = rows[0]?.bytes ?? 0
    if (freeIn(folder) < bytes + SPARE) return
    if (bytes > MOST_LOG) await db.exec('checkpoint')
    await db.exec(`vacuum ${table}`)
    await db.query(FORGET_SIZES, [table])
    await look()
  }

  /** Does what is due, and leaves a worn table for the next quiet moment. */
  async function after(due: () => Promise<void>): Promise<void> {
    clearTimeout(quiet)
    // The work fails inside a failed transaction, on a full disk, or once all is closed: the next look is soon.
    await due().catch((err: { severity?: string }) => {
      if (isTheEnd(err)) process.exit(1)
    })
    if (worn !== null) quiet = setTimeout(() => inLine(() => after(vacuum)), QUIET_MS)
  }

  return () =>
    after(async () => {
      if (++count % LOOK_EVERY === 0) await look()
      if (worn !== null && performance.now() - wornAt > PATIENCE_MS) await vacuum()
    })
}

function freeIn(folder: string): number {
  const { bavail, bsize } = statfsSync(folder)
  return bavail * bsize
}
