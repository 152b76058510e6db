/**
 * Slots that all replicas share, in Redis. Every change is one script, so that counts and the line move together; a
 * slot and a place in line are leases that their replica renews, so that a dead replica's come free. While Redis is
 * away each replica counts for itself, its running calls included.
 *
 * Keys: `held` ticket → expiry · `line` ticket → arrival · `seen` waiting ticket → expiry · `count` `i<tool>` calls
 * inside, `l<tool>` calls in line. A ticket there is `<replica>.<id>/<most>/<tool>`.
 */
import type { Logger } from 'pino'
import { createPresence } from '../../log.ts'
import { createMemorySlots, type Slots, type Ticket } from '../slots.ts'
import { type Link, type Script, script } from './link.ts'

/** KEYS: held, line, seen, count. ARGV: channel, slots of all tools, lease ms, then the operation's own. */
const COMMON = `
local held, line, seen, count = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, total, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function read(ticket)
  local most, tool = string.match(ticket, '^[^/]*/(%d+)/(.*)$')
  return tonumber(most), tool
end
local function counted(field) return tonumber(redis.call('HGET', count, field) or 0) end
local function add(field, n)
  if redis.call('HINCRBY', count, field, n) <= 0 then redis.call('HDEL', count, field) end
end
-- Redis may have evicted some of these keys and kept others: then what is left is counted anew.
local function recount()
  local sum = 0
  for _, n in ipairs(redis.call('HVALS', count)) do sum = sum + tonumber(n) end
  if sum == redis.call('ZCARD', held) + redis.call('ZCARD', line) then return end
  redis.call('DEL', count)
  for prefix, key in pairs({ i = held, l = line }) do
    for _, ticket in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      local _, tool = read(ticket)
      add(prefix .. tool, 1)
    end
  end
end
recount()
local function out(ticket)
  local _, tool = read(ticket)
  if redis.call('ZREM', held, ticket) == 1 then add('i' .. tool, -1) end
  if redis.call('ZREM', line, ticket) == 1 then add('l' .. tool, -1) end
  redis.call('ZREM', seen, ticket)
end
local function hold(ticket)
  local _, tool = read(ticket)
  if redis.call('ZADD', held, now + lease, ticket) == 1 then add('i' .. tool, 1) end
end
local function stand(ticket, since)
  local _, tool = read(ticket)
  if redis.call('ZADD', line, 'NX', since, ticket) == 1 then add('l' .. tool, 1) end
  redis.call('ZADD', seen, now + lease, ticket)
end
-- Tickets whose replica is silent go; then those that can come in do, first come first.
local function serve(own)
  for _, key in ipairs({ held, seen }) do
    for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now)) do out(ticket) end
  end
  local free, passed = total - redis.call('ZCARD', held), {}
  if free <= 0 then return end
  for _, ticket in ipairs(redis.call('ZRANGE', line, 0, -1)) do
    if free <= 0 then return end
    local most, tool = read(ticket)
    if not passed[tool] and counted('i' .. tool) < most then
      out(ticket)
      hold(ticket)
      free = free - 1
      if ticket ~= own then redis.call('PUBLISH', channel, ticket) end
    else
      passed[tool] = true
    end
  end
end
local function keep()
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, 3600000) end
end
`

/** ARGV: ticket, most in line. Returns `in` | `line` | `full`, and the arrival. */
const ENTER = script(`${COMMON}
local ticket = ARGV[4]
local _, tool = read(ticket)
local since = time[1] * 1000000 + time[2]
local last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2]
if last and tonumber(last) >= since then since = tonumber(last) + 1 end
local arrival = string.format('%.0f', since)
stand(ticket, arrival)
serve(ticket)
local answer = 'line'
if redis.call('ZSCORE', held, ticket) then
  answer = 'in'
elseif counted('l' .. tool) > tonumber(ARGV[5]) then
  out(ticket)
  answer = 'full'
end
keep()
return { answer, arrival }
`)

/** ARGV: ticket. */
const LEAVE = script(`${COMMON}
out(ARGV[4])
serve('')
return 1
`)

/**
 * ARGV: state (`in` | `line`), arrival and ticket of each. Puts back what was lost with Redis' memory. Returns the
 * tickets that are in.
 */
const RENEW = script(`${COMMON}
for i = 4, #ARGV, 3 do
  local ticket = ARGV[i + 2]
  if ARGV[i] == 'in' or redis.call('ZSCORE', held, ticket) then hold(ticket) else stand(ticket, ARGV[i + 1]) end
end
serve('')
local inside = {}
for i = 4, #ARGV, 3 do
  if redis.call('ZSCORE', held, ARGV[i + 2]) then inside[#inside + 1] = ARGV[i + 2] end
end
keep()
return inside
`)

const LEASE_MS = 6_000
/** No limit, as a number that a script can take. */
const UNLIMITED = 1_000_000_000

interface Waiting {
  ticket: Ticket
  /** Null until Redis has answered */
  arrival: string | null
  isIn: boolean
}

interface SharedSlotsDeps {
  link: Pick<Link, 'run' | 'database' | 'subscribe'>
  /** Whose slots they are: replicas with the same scope share them */
  scope: string
  /** Slots of all tools together */
  total: number
  /** Unique to this process */
  replica: string
  /** A slot whose replica says nothing for this long is free. Replicas renew theirs after a third of it */
  leaseMs?: number
  log: Logger
}

export interface SharedSlots extends Slots {
  channel: string
  /** Takes what was said on `channel`. */
  hear(message: string): void
  close(): void
}

export function createSharedSlots(deps: SharedSlotsDeps): SharedSlots {
  const { link, scope, replica, leaseMs = LEASE_MS, log } = deps
  const total = Math.min(deps.total, UNLIMITED)
  // `places`: replicas of former versions use this name.
  const keys = ['held', 'line', 'seen', 'count'].map((name) => `baton:{places:${scope}}:${name}`)
  const channel = `baton:${link.database}:places:${scope}`
  /** Counts what runs here, and decides while Redis is away */
  const own = createMemorySlots(total)
  const waiting = new Map<string, Waiting>()
  const listeners: ((ticket: string) => void)[] = []
  // A Redis that is full refuses some operations and takes others.
  const presence = createPresence(
    log,
    'limits of tools are counted by each replica alone',
    'limits of tools are shared again',
  )

  const nameOf = ({ id, most, tool }: Ticket) => `${replica}.${id}/${most}/${tool}`
  const tell = (id: string) => {
    for (const fn of listeners) fn(id)
  }

  async function run(operation: Script, args: (string | number)[]): Promise<unknown> {
    try {
      const answer = await link.run(operation, keys, [channel, total, leaseMs, ...args])
      presence.back()
      return answer
    } catch (err) {
      presence.away(err)
      throw err
    }
  }

  function hear(name: string): void {
    const prefix = `${replica}.`
    if (!name.startsWith(prefix)) return
    const id = name.slice(prefix.length, name.indexOf('/'))
    const found = waiting.get(id)
    if (!found) {
      // A renewal that Redis had to be sent again, in full, may come after the slot was given back: it takes it anew.
      if (!own.holds(id)) void run(LEAVE, [name]).catch(() => {})
      return
    }
    own.hold(found.ticket)
    // The grant may be heard before the answer of ENTER: then `enter` reports it.
    if (found.arrival === null) found.isIn = true
    else if (waiting.delete(id)) tell(id)
  }

  async function renew(): Promise<void> {
    const line = [...waiting.values()].filter(({ arrival }) => arrival !== null)
    const args = [
      ...own.held().flatMap((ticket) => ['in', 0, nameOf(ticket)]),
      ...line.flatMap(({ ticket, arrival }) => ['line', arrival ?? 0, nameOf(ticket)]),
    ]
    if (args.length === 0) return
    try {
      for (const name of (await run(RENEW, args)) as string[]) hear(name)
    } catch {
      // Calls in Redis' line would wait for nothing.
      for (const { ticket } of line) {
        if (!waiting.delete(ticket.id)) continue
        if ((await own.enter(ticket, Number.POSITIVE_INFINITY)) === 'in') tell(ticket.id)
      }
    }
  }

  const timer = setInterval(() => void renew(), leaseMs / 3).unref()
  own.onGranted(tell)
  // If this fails, the next connection subscribes; renewals report grants, too.
  link.subscribe(channel).catch(() => {})

  return {
    channel,
    hear,
    async enter(ticket, lineLimit) {
      const mine: Waiting = { ticket, arrival: null, isIn: false }
      waiting.set(ticket.id, mine)
      try {
        const answer = (await run(ENTER, [nameOf(ticket), lineLimit])) as ['in' | 'line' | 'full', string]
        if (answer[0] === 'in') own.hold(ticket)
        mine.arrival = answer[1]
        if (answer[0] === 'line' && !mine.isIn) return 'line'
        waiting.delete(ticket.id)
        return mine.isIn ? 'in' : answer[0]
      } catch {
        waiting.delete(ticket.id)
        return mine.isIn ? 'in' : own.enter(ticket, lineLimit)
      }
    },
    async leave(ticket) {
      waiting.delete(ticket.id)
      await own.leave(ticket)
      // If Redis is not told, the slot comes free with its lease.
      await run(LEAVE, [nameOf(ticket)]).catch(() => {})
    },
    onGranted: (fn) => void listeners.push(fn),
    close() {
      presence.close()
      clearInterval(timer)
    },
  }
}
