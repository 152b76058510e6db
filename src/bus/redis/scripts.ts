/**
 * A session's log in Redis: a stream with the events, and a hash beside it with what a stream cannot hold. Each
 * operation is one script, so that no other writer comes in between; the scripts need Redis 5 or later.
 *
 * The hash: `gen` generation · `last` id of the newest event · `floor` id of the newest one trimmed away · `added`,
 * `kept`, `bytes` · `touched` when the expiry was postponed · `told` set once readers heard of the loss that the log
 * began with · `step` id before the first event of the step under way, and that of the newest event when it was noted
 * (empty: no step is) · `f:<turn>` id of the turn's first event (`?`: lost) · `e:<turn>` id of its terminal event ·
 * `p:<turn>` epoch of the newest owner that spoke in it · `o:<key>` id behind a once key · `w:<writer>` number of the
 * writer's last append · `epoch` of the newest owner that spoke · `era` in which the log began: since when which server
 * serves. A later server may have the log from a disk, or from a copy that lagged behind, without its newest events:
 * then the log begins again.
 */
import { FIRST_EVENT, STEP_BEGINS, STEP_ENDS, TERMINAL } from '../../chat/event.ts'
import {
  type BusEvent,
  type LoggedEvent,
  type LogLimits,
  PAGE,
  PAGE_BYTES,
  type ReadOptions,
} from '../bus.ts'
import { compareIds, type Position, sessionTag } from '../cursor.ts'
import { type Link, refusalOf, script } from './link.ts'
import { eventsIn } from './published.ts'

/**
 * Shared by the scripts, whose last ARGV is the era. Ids are `<ms>-<n>`, compared as numbers; `s` is a session's
 * current log.
 */
const COMMON = `
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
local era = ARGV[#ARGV]
local eraSince, eraServer = string.match(era, '^(%d+) (%S+)$')
local function isPast(other)
  local since, server = string.match(other, '^(%d+) (%S+)$')
  return server ~= eraServer and tonumber(since) < tonumber(eraSince)
end
local function open(log, meta, writer)
  local m = redis.call('HMGET', meta, 'gen', 'last', 'floor', 'added', 'kept', 'bytes', 'touched', 'epoch',
    'told', 'step', writer, 'era')
  local s = { log = log, meta = meta, gen = m[1], last = m[2], floor = m[3], added = tonumber(m[4]),
    kept = tonumber(m[5]), bytes = tonumber(m[6]), touched = m[7] and tonumber(m[7]),
    epoch = tonumber(m[8] or '0'), told = m[9], done = m[11], era = m[12] or era }
  -- Replicas of the version before append without noting a step: it may be over by what they said.
  local step, noted = string.match(m[10] or '', '^(%S+) (%S+)$')
  s.step = noted == s.last and step or ''
  s.lost = not s.gen or isPast(s.era) or (s.added > 0 and redis.call('EXISTS', log) == 0)
  return s
end
local function begin(s, idle)
  -- After every id of the former log, which may have had events in this very millisecond, or by a clock that was ahead.
  local first = join(now, (time[2] % 1000 + 1) * 1000)
  if s.last and before(first, s.last) then first = s.last end
  -- A full Redis refuses this, but nothing that comes after a DEL: readers would get a gap with every second append.
  redis.call('HSET', s.meta, 'gen', '')
  redis.call('DEL', s.log, s.meta)
  s.gen = string.sub(redis.sha1hex(s.log .. time[1] .. '.' .. time[2]), 1, 6)
  s.last, s.floor, s.added, s.kept, s.bytes = first, '0-0', 0, 0, 0
  s.touched, s.epoch, s.step, s.era = nil, 0, '', era
  redis.call('HSET', s.meta, 'gen', s.gen, 'last', s.last, 'floor', s.floor, 'added', 0, 'kept', 0, 'bytes', 0, 'era', era)
  -- Here, since what follows may be refused.
  redis.call('PEXPIRE', s.meta, idle)
end
`

const isOneOf = (types: readonly string[]) => types.map((type) => `kind == '${type}'`).join(' or ')

/**
 * Appends to several sessions, each on its own. KEYS: log and meta of each. ARGV: most events, most bytes, idle ms,
 * writer, number; then of each session: channel, past (1: events were given up, 2: these may have been said before,
 * else 0), count of events, and type, turn, data, once, epoch, alone of each event. Returns for each session why its
 * events were refused, or ''. Publishes lines: generation, id before (`-` after a log that was lost, `!` where readers
 * would miss events or hear some twice), and id, type, turn, data of each event.
 */
const APPEND = script(`${COMMON}
local maxEvents, maxBytes, idle = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local writer, number = 'w:' .. ARGV[4], tonumber(ARGV[5])

local function mark(s, id, kind, turn, once)
  if once ~= '' then redis.call('HSET', s.meta, 'o:' .. once, id) end
  if turn == '' then return end
  redis.call('HSETNX', s.meta, 'f:' .. turn, kind == '${FIRST_EVENT}' and id or '?')
  if ${isOneOf(TERMINAL)} then
    redis.call('HSET', s.meta, 'e:' .. turn, id)
  end
end

-- A tenth at once, so that not every event pays for it.
local function trim(s)
  local lowEvents, lowBytes = math.floor(maxEvents * 0.9), math.floor(maxBytes * 0.9)
  while s.kept > 0 and (s.kept > lowEvents or s.bytes > lowBytes) do
    local page = redis.call('XRANGE', s.log, '-', '+', 'COUNT', 100)
    if #page == 0 then s.kept, s.bytes = 0, 0 end
    for _, entry in ipairs(page) do
      if s.kept > lowEvents or s.bytes > lowBytes then
        s.kept, s.bytes, s.floor = s.kept - 1, s.bytes - #entry[2][6] - 200, entry[1]
      end
    end
    redis.call('XTRIM', s.log, 'MAXLEN', s.kept)
  end
  -- known: by turn, whether it is still remembered, which it is until its end is gone.
  local all, known, remembered = redis.call('HGETALL', s.meta), {}, 0
  local function gone(i, prefix)
    return string.sub(all[i], 1, 2) == prefix and all[i + 1] ~= '?' and not before(s.floor, all[i + 1])
  end
  for i = 1, #all, 2 do
    local prefix, turn = string.sub(all[i], 1, 2), string.sub(all[i], 3)
    if gone(i, 'e:') then known[turn] = false elseif prefix == 'f:' and known[turn] == nil then known[turn] = true end
  end
  -- What a turn announced last may be announced again, however much was said since.
  local function isForgotten(key)
    if not known[string.match(key, '^[^:]*')] then return true end
    remembered = remembered + 1
    return remembered > maxEvents
  end
  for i = 1, #all, 2 do
    local prefix, name = string.sub(all[i], 1, 2), string.sub(all[i], 3)
    if (known[name] == false and string.match(prefix, '^[efp]:$')) or (gone(i, 'o:') and isForgotten(name)) then
      redis.call('HDEL', s.meta, all[i])
    elseif gone(i, 'f:') then
      redis.call('HSET', s.meta, all[i], '?')
    end
  end
end

-- Epochs count by turn: while a turn ends here, the owner of the next one, another replica, may speak first.
local function isStale(s, kind, turn, epoch)
  local m = redis.call('HMGET', s.meta, 'p:' .. turn, 'e:' .. turn, 'f:' .. turn)
  local newest = tonumber(m[1] or '0')
  if not m[3] and kind ~= '${FIRST_EVENT}' then newest = s.epoch end
  if m[2] or epoch < newest then return true end
  if epoch > newest or not m[1] then redis.call('HSET', s.meta, 'p:' .. turn, epoch) end
  if epoch > s.epoch then
    s.epoch = epoch
    redis.call('HSET', s.meta, 'epoch', epoch)
  end
  return false
end

local function goesOn(s, turn)
  local m = redis.call('HMGET', s.meta, 'f:' .. turn, 'e:' .. turn)
  return m[1] and not m[2]
end

-- After a loss something else that is said in the session may have begun the new log, so that its readers noticed
-- nothing. An event that may come again, of a turn whose beginning is not in this log, may then be one that they heard
-- before the loss. In a log that was trimmed a lacking beginning tells nothing. But a turn of which such a log knows
-- nothing may have ended there, and have been forgotten since.
local function mayBeRepetition(s, at)
  local isTrimmed = s.floor ~= '0-0'
  if s.told and not isTrimmed then return false end
  local begins = {}
  for i = at + 3, at + 6 * tonumber(ARGV[at + 2]), 6 do
    local kind, turn, once = ARGV[i], ARGV[i + 1], ARGV[i + 3]
    if kind == '${FIRST_EVENT}' then begins[turn] = true end
    if once ~= '' and turn ~= '' and not begins[turn] then
      local m = redis.call('HMGET', s.meta, 'f:' .. turn, 'o:' .. once)
      if (not m[1] or (m[1] == '?' and not isTrimmed)) and not m[2] then return true end
    end
  end
  return false
end

local function append(log, meta, at)
  local s = open(log, meta, writer)
  -- Not only the same number: what a broken connection still brings may come after later appends.
  if s.done and tonumber(s.done) >= number then return end
  local prev, past = s.last, ARGV[at + 1]
  -- A reader that came first has begun the lost log anew, and stands in it by now.
  if s.lost or past == '1' or (past == '2' and (s.added == 0 or mayBeRepetition(s, at))) then
    prev = past == '0' and '-' or '!'
    begin(s, idle)
    if prev == '!' then redis.call('HSET', s.meta, 'told', 1) end
  end
  local ms, n = split(s.last)
  local said = { s.gen, prev }
  for i = at + 3, at + 6 * tonumber(ARGV[at + 2]), 6 do
    local kind, turn, data, once = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
    local epoch, alone = tonumber(ARGV[i + 4]), ARGV[i + 5]
    if alone ~= '' and not goesOn(s, turn) then turn, data = '', alone end
    local isKnown = once ~= '' and redis.call('HEXISTS', meta, 'o:' .. once) == 1
    if not isKnown and not (epoch and isStale(s, kind, turn, epoch)) then
      if now > ms then ms, n = now, 0 else n = n + 1 end
      local id = join(ms, n)
      redis.call('XADD', log, id, 'e', kind, 't', turn, 'd', data)
      if kind == '${STEP_BEGINS}' then s.step = s.last elseif ${isOneOf(STEP_ENDS)} then s.step = '' end
      s.last, s.added, s.kept, s.bytes = id, s.added + 1, s.kept + 1, s.bytes + #data + 200
      mark(s, id, kind, turn, once)
      local end_ = #said
      said[end_ + 1], said[end_ + 2], said[end_ + 3], said[end_ + 4] = id, kind, turn, data
    end
  end
  if s.kept > maxEvents or s.bytes > maxBytes then trim(s) end
  redis.call('HSET', meta, 'last', s.last, 'floor', s.floor, 'added', s.added, 'kept', s.kept, 'bytes', s.bytes,
    'step', s.step ~= '' and s.step .. ' ' .. s.last or '', 'era', s.era, writer, ARGV[5])
  if not s.touched or now - s.touched > idle / 10 then
    redis.call('PEXPIRE', log, idle)
    redis.call('PEXPIRE', meta, idle)
    -- A log without an event is no key, and cannot be told yet when to expire.
    if s.kept > 0 then redis.call('HSET', meta, 'touched', now) end
  end
  if #said > 2 or prev == '!' then redis.call('PUBLISH', ARGV[at], table.concat(said, '\\n')) end
end

local answers, at = {}, 6
for i = 1, #KEYS, 2 do
  local ok, why = pcall(append, KEYS[i], KEYS[i + 1], at)
  answers[#answers + 1] = ok and '' or tostring(type(why) == 'table' and why.err or why)
  at = at + 3 + 6 * tonumber(ARGV[at + 2])
end
return answers
`)

/**
 * ARGV: idle ms, `at` | `start` | `now`, generation and id to continue after, turn, begun (1 or 0), most events, most
 * bytes. Returns generation, whether there is a gap, the id reached, whether that is the newest, whether the turn's end is
 * reached (each 1 or 0), the id before the oldest event kept, and id, type, turn, data of each event.
 */
const READ = script(`${COMMON}
local s = open(KEYS[1], KEYS[2], 'w:')
if s.lost then begin(s, ARGV[1]) end
local kind, turn, from, first = ARGV[2], ARGV[5], nil, nil
if kind == 'at' then
  local id = ARGV[4]
  if ARGV[3] == s.gen and not before(id, s.floor) and not before(s.last, id) then from = id end
elseif kind == 'now' then
  from = s.last
elseif turn == '' then
  from = s.floor
else
  first = redis.call('HGET', s.meta, 'f:' .. turn)
  if first == '?' then first = nil
  elseif not first and ARGV[6] == '0' then from = s.last end
end
local out, reached = { s.gen, '0', '', '1', '0', s.floor }, from or s.last
if from or first then
  if not first then
    local ms, n = split(from)
    first = join(ms, n + 1)
  end
  local size, most, limit = 0, tonumber(ARGV[7]), tonumber(ARGV[8])
  local page = redis.call('XRANGE', s.log, first, '+', 'COUNT', most)
  if #page == most then out[4] = '0' elseif #page == 0 then reached = s.last end
  for _, entry in ipairs(page) do
    local event, end_ = entry[2], #out
    if size > 0 and size + #event[6] > limit then
      out[4] = '0'
      break
    end
    size, reached = size + #event[6], entry[1]
    out[end_ + 1], out[end_ + 2], out[end_ + 3], out[end_ + 4] = reached, event[2], event[4], event[6]
  end
else
  out[2] = '1'
  -- What a step under way has streamed is in no snapshot: it is told from its beginning.
  if s.step ~= '' and not before(s.step, s.floor) then reached, out[4] = s.step, '0' end
end
out[3] = reached
local ending = turn ~= '' and redis.call('HGET', s.meta, 'e:' .. turn)
if ending and not before(reached, ending) then out[5] = '1' end
return out
`)

const DROP = script(`
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('PUBLISH', ARGV[1], '')
return 1
`)

/** What goes into one session's log. */
export interface Group {
  session: string
  events: readonly BusEvent[]
  /** Events of this session were given up before: its log starts over */
  reset: boolean
}
export type ReadFrom = Position | 'start' | 'now'
export interface Page {
  /** What was asked for is lost; the reader goes on at `position` */
  isGap: boolean
  position: Position
  /** Before the oldest event kept */
  oldest: Position
  /** The page reaches up to the newest event */
  isComplete: boolean
  /** The page reaches the end of the turn that was asked for */
  isOver: boolean
  events: LoggedEvent[]
}
/** The keys of a session lie in one slot of a cluster. */
const keysOf = (session: string) => [`baton:{${session}}:log`, `baton:{${session}}:meta`]

export type Scripts = ReturnType<typeof createScripts>

/** `writer` names this replica. By it and the append's number, Redis recognizes a repeated append. */
export function createScripts(link: Link, writer: string, limits: LogLimits) {
  const channel = (session: string) => `baton:${link.database}:log:${session}`
  return {
    channel,
    /**
     * `number` grows with each append of this writer; the same number `again` does nothing if the first call took
     * effect. An Error stands for a session whose append Redis refused; throws if it refuses all appends.
     */
    async append(number: number, groups: readonly Group[], again: boolean): Promise<(Error | null)[]> {
      const keys: string[] = []
      const args: (string | number)[] = [limits.maxEvents, limits.maxBytes, limits.idleMs, writer, number]
      for (const { session, reset, events } of groups) {
        keys.push(...keysOf(session))
        const isLost = reset || events.some((event) => event.lost)
        const isRepeated = again || events.some((event) => event.again)
        args.push(channel(session), isLost ? 1 : isRepeated ? 2 : 0, events.length)
        for (const { type, turn_id, data, once, epoch, alone } of events) {
          args.push(type, turn_id ?? '', data, once ?? '', epoch ?? '', alone ?? '')
        }
      }
      const answers = (await link.run(APPEND, keys, [...args, await link.era()])) as string[]
      return answers.map((words) => {
        if (refusalOf(words)) throw new Error(words)
        return words === '' ? null : new Error(`Redis refused events: ${words}`)
      })
    },
    async read(
      session: string,
      from: ReadFrom,
      { turn = '', begun = false }: Pick<ReadOptions, 'turn' | 'begun'>,
    ): Promise<Page> {
      const era = await link.era()
      const at = typeof from === 'string' ? [from, '', ''] : ['at', from.generation, from.id]
      const args = [limits.idleMs, ...at, turn, begun ? 1 : 0, PAGE, PAGE_BYTES, era]
      const answer = (await link.run(READ, keysOf(session), args)) as string[]
      const [generation = '', gap, id = '', complete, over, floor = ''] = answer
      return {
        isGap: gap === '1',
        isComplete: complete === '1',
        isOver: over === '1',
        position: { generation, id },
        oldest: { generation, id: floor },
        events: eventsIn(answer, 6, sessionTag(session), generation),
      }
    },
    async pastEnd(
      session: string,
      turn: string,
      { generation, id }: Position,
      hasEnded: boolean,
    ): Promise<boolean> {
      const [, meta = ''] = keysOf(session)
      const marks = ['gen', 'era', 'floor', 'last', `f:${turn}`, `e:${turn}`]
      const [current, era, floor, last, first, end] = await link.fields(meta, ...marks)
      if (current !== generation || !floor || !last) return false
      if (era && serverOf(era) !== serverOf(await link.era())) return false
      if (compareIds(id, floor) < 0 || compareIds(id, last) > 0) return false
      return end ? compareIds(id, end) >= 0 : hasEnded && !first
    },
    drop: (session: string) => link.run(DROP, keysOf(session), [channel(session)]),
  }
}

const serverOf = (era: string) => era.split(' ')[1]
