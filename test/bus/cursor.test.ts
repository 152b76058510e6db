/** Ids of events: the places that they name, and strings that are no ids. */
import t from 'tap'
import {
  compareIds,
  endId,
  formatCursor,
  gapId,
  parseCursor,
  readId,
  sessionTag,
} from '../../src/bus/cursor.ts'
import { newId } from '../../src/chat/ids.ts'

const cursor = formatCursor(sessionTag('ses_1'), { generation: '0a1b2c', id: '1700000000000-12' })
const turn = newId('turn')

t.test('an event id names its place, and the end of a turn or the snapshot told there', async (t) => {
  t.same(parseCursor(cursor, 'ses_1'), { generation: '0a1b2c', id: '1700000000000-12' })
  const older = `1700000000000-12.${cursor.split('.')[1]}`
  t.same(parseCursor(older, 'ses_1'), parseCursor(cursor, 'ses_1'), 'builds before wrote it without zeros')
  t.match(readId(cursor), { after: cursor, ended: undefined, snapshot: undefined })
  t.match(readId(endId(cursor, turn)), { after: cursor, ended: turn, snapshot: undefined })
  t.match(readId(gapId(cursor, { seq: 0, turn: null })), { after: cursor, snapshot: { seq: 0, turn: null } })
  for (const state of ['queued', 'begun', 'ended'] as const) {
    const snapshot = { seq: 42, turn: { id: turn, state } }
    t.same(readId(gapId(cursor, snapshot)), {
      after: cursor,
      ended: state === 'ended' ? turn : undefined,
      snapshot,
    })
  }
})

const MALFORMED = { code: 'invalid_cursor', param: 'after', message: /malformed/ }

t.test('a malformed event id, or one of another session, is refused', async (t) => {
  for (const given of [
    'start',
    'now',
    `x${cursor}`,
    `x.${cursor}`,
    `${cursor}0`,
    `${cursor}.`,
    `${cursor}.x`,
    `${cursor}.5b`,
    `${cursor}.5.${turn}`,
    `${cursor}.5z.${turn}`,
    `${cursor}.5b.turn_1`,
    `${cursor}.5b.${turn}0`,
    `${cursor}.${'1'.repeat(16)}`,
    `${cursor}.${turn}.5b`,
    `${cursor}.5b.${turn}.${turn}`,
    ` ${cursor}`,
    `${cursor}\n`,
    cursor.toUpperCase(),
    `${'1'.repeat(16)}-1.${cursor.split('.')[1]}`,
    `1-${'1'.repeat(16)}.${cursor.split('.')[1]}`,
    `-1-1.${cursor.split('.')[1]}`,
  ])
    t.throws(() => parseCursor(readId(given).after, 'ses_1'), MALFORMED, given)
  t.throws(() => parseCursor(cursor, 'ses_2'), { code: 'invalid_cursor', message: /another session/ })
})

t.test('ids are ordered by their numbers', async (t) => {
  const ids = ['10-0', '9-10', '9-9', '100-0']
  t.same(ids.sort(compareIds), ['9-9', '9-10', '10-0', '100-0'])
})
