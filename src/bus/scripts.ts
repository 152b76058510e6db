/**
 * A session's log in Redis: a stream with the events, and a hash beside it with what a stream cannot tell.
 * Each operation is one script, so that no other writer comes in between; scripts run on Redis 5 and later.
 *
 * The hash: `gen` generation · `last` id of the newest event · `floor` id of the newest one trimmed away ·
 * `added`, `kept`, `bytes` · `touched` when the expiry was put off · `f:<turn>` id of the turn's first event
 * (`?`: lost) · `e:<turn>` id of its terminal event · `o:<key>` id behind a once key · `w:<writer>` number
 * and answer of the writer's last append.
 */
import type { BusEvent, LoggedEvent } from './bus.ts'
import { newGeneration, type Place } from './cursor.ts'
import type { LogLimits } from './limits.ts'
import { type Link, script } from './link.ts'

/** Shared by the scripts: ids are `<ms>-<n>`, compared as numbers. */
const COMMON = `
local log, meta = KEYS[1], KEYS[2]
local function split(id)
  local ms, n = string.match(id, '^(%d+)%-(%d+)$')
  return tonumber(ms), tonumber(n)
end
local function before(a, b)
  local ams, an = split(a)
  local bms, bn = split(b)
  return ams < bms or (ams == bms and an < bn)
end
local function join(ms, n) return string.format('%.0f-%.0f', ms, n) end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function begin(generation)
  redis.call('DEL', log, meta)
  local base = join(now - 1, 0)
  redis.call('HSET', meta, 'gen', generation, 'last', base, 'floor', '0-0', 'added', 0, 'kept', 0, 'bytes', 0)
  return generation, base, '0-0', 0, 0, 0
end
local m = redis.call('HMGET', meta, 'gen', 'last', 'floor', 'added', 'kept', 'bytes', 'touched')
local gen, last, floor = m[1], m[2], m[3]
local added, kept, bytes = tonumber(m[4]), tonumber(m[5]), tonumber(m[6])
local lost = not gen or (added > 0 and redis.call('EXISTS', log) == 0)
`

/**
 * ARGV: new generation, channel, most events, most bytes, idle ms, writer, its number, reset (1 or 0), then
 * type, turn, data, once of each event. Answers `<generation> <id> <id> …`.
 * Publishes lines: generation, id before (`-` after a log that was lost, `!` after events that were), and
 * id, type, turn, data of each event.
 */
const APPEND = script(`${COMMON}
local writer = 'w:' .. ARGV[6]
local repeated = redis.call('HGET', meta, writer)
if repeated and gen and not lost then
  local number, answer = string.match(repeated, '^(%d+) (.*)$')
  if number == ARGV[7] then return answer end
end
local prev = last
if lost or ARGV[8] == '1' then
  prev = ARGV[8] == '1' and '!' or '-'
  gen, last, floor, added, kept, bytes = begin(ARGV[1])
  m[7] = false
end
local lastMs, lastN = split(last)
if now < lastMs then now = lastMs end
local maxEvents, maxBytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local ids, said, set = { gen }, { gen, prev }, {}
for i = 9, #ARGV, 4 do
  local kind, turn, data, once = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local known = once ~= '' and redis.call('HGET', meta, 'o:' .. once)
  if known then
    ids[#ids + 1] = known
  else
    if now == lastMs then lastN = lastN + 1 else lastMs, lastN = now, 0 end
    local id = join(lastMs, lastN)
    redis.call('XADD', log, id, 'e', kind, 't', turn, 'd', data)
    added, kept, bytes = added + 1, kept + 1, bytes + #data + 200
    ids[#ids + 1] = id
    said[#said + 1] = id
    said[#said + 1] = kind
    said[#said + 1] = turn
    said[#said + 1] = data
    if once ~= '' then redis.call('HSET', meta, 'o:' .. once, id) end
    if turn ~= '' then
      redis.call('HSETNX', meta, 'f:' .. turn, kind == 'turn.created' and id or '?')
      if kind == 'turn.completed' or kind == 'turn.failed' or kind == 'turn.cancelled' then
        redis.call('HSET', meta, 'e:' .. turn, id)
      end
    end
  end
end
if kept > maxEvents or bytes > maxBytes then
  -- A tenth at once, so that not every event pays for it.
  local lowEvents, lowBytes = math.floor(maxEvents * 0.9), math.floor(maxBytes * 0.9)
  while kept > 0 and (kept > lowEvents or bytes > lowBytes) do
    local page = redis.call('XRANGE', log, '-', '+', 'COUNT', 100)
    if #page == 0 then kept, bytes = 0, 0 end
    for _, entry in ipairs(page) do
      if kept > lowEvents or bytes > lowBytes then
        kept, bytes, floor = kept - 1, bytes - #entry[2][6] - 200, entry[1]
      end
    end
    redis.call('XTRIM', log, 'MAXLEN', kept)
  end
  local all, ended = redis.call('HGETALL', meta), {}
  local function gone(i, mark)
    return string.sub(all[i], 1, 2) == mark and all[i + 1] ~= '?' and not before(floor, all[i + 1])
  end
  for i = 1, #all, 2 do
    if gone(i, 'e:') then ended[string.sub(all[i], 3)] = true end
    if gone(i, 'e:') or gone(i, 'o:') then redis.call('HDEL', meta, all[i]) end
  end
  for i = 1, #all, 2 do
    local turn = string.sub(all[i], 3)
    if string.sub(all[i], 1, 2) == 'f:' and ended[turn] then redis.call('HDEL', meta, all[i])
    elseif gone(i, 'f:') then redis.call('HSET', meta, all[i], '?') end
  end
end
local answer = table.concat(ids, ' ')
redis.call('HSET', meta, 'last', join(lastMs, lastN), 'floor', floor, 'added', added, 'kept', kept,
  'bytes', bytes, writer, ARGV[7] .. ' ' .. answer)
local idle = tonumber(ARGV[5])
if not m[7] or now - tonumber(m[7]) > idle / 10 then
  redis.call('PEXPIRE', log, idle)
  redis.call('PEXPIRE', meta, idle)
  redis.call('HSET', meta, 'touched', now)
end
if #said > 2 or prev == '!' then redis.call('PUBLISH', ARGV[2], table.concat(said, '\\n')) end
return answer
`)

/**
 * ARGV: new generation, idle ms, `at` | `start` | `now`, generation and id to go on after, turn, begun (1 or
 * 0), most events, most bytes. Answers generation, `ok` | `gap` | `over` (the turn's end is reached), the id
 * reached, whether that is the newest (1 or 0), and id, type, turn, data of each event.
 */
const READ = script(`${COMMON}
if lost then
  gen, last, floor = begin(ARGV[1])
  redis.call('PEXPIRE', meta, ARGV[2])
end
local kind, turn, from, first = ARGV[3], ARGV[6], nil, nil
if kind == 'at' then
  local id = ARGV[5]
  if ARGV[4] == gen and not before(id, floor) and not before(last, id) then from = id end
elseif kind == 'now' then
  from = last
elseif turn == '' then
  from = floor
else
  first = redis.call('HGET', meta, 'f:' .. turn)
  if first == '?' then first = nil
  elseif not first and ARGV[7] == '0' then from = last end
end
if not from and not first then return { gen, 'gap', last, '1' } end
local reached = from
if not first then
  local ms, n = split(from)
  first = join(ms, n + 1)
end
local out, size, limit = { gen, 'ok', '', '1' }, 0, tonumber(ARGV[9])
local page = redis.call('XRANGE', log, first, '+', 'COUNT', ARGV[8])
if #page == tonumber(ARGV[8]) then out[4] = '0' end
for _, entry in ipairs(page) do
  local event = entry[2]
  if size > 0 and size + #event[6] > limit then
    out[4] = '0'
    break
  end
  size = size + #event[6]
  reached = entry[1]
  out[#out + 1] = reached
  out[#out + 1] = event[2]
  out[#out + 1] = event[4]
  out[#out + 1] = event[6]
end
out[3] = reached or last
local ending = turn ~= '' and redis.call('HGET', meta, 'e:' .. turn)
if ending and not before(out[3], ending) then out[2] = 'over' end
return out
`)

const DROP = script(`
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('PUBLISH', ARGV[1], '')
return 1
`)

/** Where a reader stands: right after the event of this id, in this generation of the log. */
export interface Position {
  generation: string
  id: string
}
export interface Page {
  /** What was asked for is lost; `position` is the log's newest place */
  isGap: boolean
  position: Position
  /** The page reaches up to the newest event */
  isComplete: boolean
  /** … or to the end of the turn that was asked for */
  isOver: boolean
  events: LoggedEvent[]
}
/** What an append says on the session's channel. */
export interface Said {
  generation: string
  /** Id of the event before these; `fresh`: the log was lost, but nothing that was not said here; `lost`: events were */
  before: string | 'fresh' | 'lost'
  events: LoggedEvent[]
}

export const compareIds = (a: string, b: string): number => {
  const [ams, an] = a.split('-')
  const [bms, bn] = b.split('-')
  return Number(ams) - Number(bms) || Number(an) - Number(bn)
}
export const idOf = ({ cursor }: LoggedEvent): string => cursor.slice(0, cursor.indexOf('.'))
export const cursorOf = (tag: string, { generation, id }: Position): string => `${id}.${tag}${generation}`
export const positionOf = ({ generation, ms, n }: Place): Position => ({ generation, id: `${ms}-${n}` })

/** The keys of a session lie in one slot of a cluster. */
const keysOf = (session: string) => [`baton:{${session}}:log`, `baton:{${session}}:meta`]

export type Scripts = ReturnType<typeof createScripts>

export function createScripts(link: Link, writer: string, limits: LogLimits) {
  const channel = (session: string) => `baton:${link.database}:log:${session}`
  return {
    channel,
    /** `number` grows with each append of this writer; the same one again answers as the first time did. */
    async append(
      session: string,
      tag: string,
      number: number,
      events: BusEvent[],
      reset: boolean,
    ): Promise<string[]> {
      const { maxEvents, maxBytes, idleMs } = limits
      const args: (string | number)[] = [newGeneration(), channel(session), maxEvents, maxBytes, idleMs]
      args.push(writer, number, reset ? 1 : 0)
      for (const { type, turn_id, data, once } of events) args.push(type, turn_id ?? '', data, once ?? '')
      const [generation = '', ...ids] = String(await link.run(APPEND, keysOf(session), args)).split(' ')
      return ids.map((id) => cursorOf(tag, { generation, id }))
    },
    async read(
      session: string,
      tag: string,
      from: Position | 'start' | 'now',
      options: { turn: string | undefined; begun: boolean; events: number; bytes: number },
    ): Promise<Page> {
      const { turn = '', begun, events, bytes } = options
      const at = typeof from === 'string' ? [from, '', ''] : ['at', from.generation, from.id]
      const args = [newGeneration(), limits.idleMs, ...at, turn, begun ? 1 : 0, events, bytes]
      const answer = (await link.run(READ, keysOf(session), args)) as string[]
      const [generation = '', state, id = '', complete] = answer
      return {
        isGap: state === 'gap',
        isComplete: complete === '1',
        isOver: state === 'over',
        position: { generation, id },
        events: eventsIn(answer, 4, tag, generation),
      }
    },
    async pastEnd(session: string, turn: string, { generation, id }: Position): Promise<boolean> {
      const [, meta = ''] = keysOf(session)
      const [current, end] = await link.fields(meta, 'gen', `e:${turn}`)
      return current === generation && typeof end === 'string' && compareIds(id, end) >= 0
    },
    drop: (session: string) => link.run(DROP, keysOf(session), [channel(session)]),
  }
}

/** Null: the session was dropped. */
export function readSaid(message: string, tag: string): Said | null {
  if (message === '') return null
  // Data is JSON, so that no line break stands inside of it.
  const lines = message.split('\n')
  const [generation = '', before = ''] = lines
  return {
    generation,
    before: before === '-' ? 'fresh' : before === '!' ? 'lost' : before,
    events: eventsIn(lines, 2, tag, generation),
  }
}

function eventsIn(parts: readonly string[], start: number, tag: string, generation: string): LoggedEvent[] {
  const events: LoggedEvent[] = []
  for (let i = start; i + 3 < parts.length; i += 4) {
    const [id = '', type = '', turn = '', data = ''] = parts.slice(i, i + 4)
    events.push({ cursor: `${id}.${tag}${generation}`, type, turn_id: turn === '' ? null : turn, data })
  }
  return events
}
