/**
 * What durability alone costs in Node: bare-xcode's path and nothing of Baton's, with the two statements and the event
 * log that no turn can do without that must survive its process. It checks no fence, no owner and no input, has no
 * tools, no resumption and no second replica, so a gateway that does its job cannot be cheaper.
 *
 * One statement writes the user's message and the turn before the provider is asked, one the answer and the turn's end
 * before the client hears of it. DATABASE_URL: PostgreSQL through pg, else the embedded one in its worker. REDIS_URL: each
 * network read is one XADD whose id is the cursor, before the client gets it; else the log is in memory.
 *
 *   node bare-durable.mjs <port> <upstream's port> <folder>
 */
import { randomUUID } from 'node:crypto'
import Fastify from 'fastify'
import { Redis } from 'ioredis'
import pg from 'pg'
import { Pool } from 'undici'
import { createDecoder, encodeEvent } from '../../dist/src/sse.js'
import { openEmbedded } from '../../dist/src/store/embedded.js'

const [port, upstream, folder] = process.argv.slice(2)
const SCHEMA = `
  create table if not exists bare_turn (id text primary key, session text, state text, created_at timestamptz default now(), ended_at timestamptz);
  create index if not exists bare_turn_of_session on bare_turn (session, id);
  create table if not exists bare_message (id text primary key, turn text, role text, body json, created_at timestamptz default now());
  create index if not exists bare_message_of_turn on bare_message (turn, id)`
const BEGIN = `with made as (insert into bare_turn (id, session, state) values ($1, $2, 'running') returning id)
  insert into bare_message (id, turn, role, body) select $3, id, 'user', $4::json from made returning created_at`
const END = `with ended as (update bare_turn set state = 'completed', ended_at = now() where id = $1 returning id)
  insert into bare_message (id, turn, role, body) select $2, id, 'assistant', $3::json from ended returning created_at`

const query = await openStore()
const log = openLog()
const pool = new Pool(`http://127.0.0.1:${upstream}`, { connections: 4096, pipelining: 1, bodyTimeout: 0 })
const app = Fastify({ logger: false, keepAliveTimeout: 60_000, bodyLimit: 64 << 20 })

app.post('/v1/turns', async (request, reply) => {
  const { model, messages, tools } = request.body
  const turn = randomUUID()
  await query(BEGIN, [turn, `session-${turn.slice(0, 2)}`, randomUUID(), JSON.stringify(messages.at(-1))])
  const say = async (events) => {
    const cursor = await log.append(turn, events)
    reply.raw.write(
      events.map((event, i) => encodeEvent(event.type, JSON.stringify(event), `${cursor}.${i}`)).join(''),
    )
  }
  reply.hijack()
  reply.raw.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' })
  await say([{ type: 'turn.started', turn, model }])
  const { body } = await pool.request({
    path: '/v1/responses',
    method: 'POST',
    headers: { 'content-type': 'application/json', accept: 'text/event-stream' },
    body: JSON.stringify({ model, stream: true, store: false, input: messages.map(inputItem), tools }),
  })
  const events = []
  let text = ''
  const frames = createDecoder(({ data }) => {
    const event = JSON.parse(data)
    if (event.type !== 'response.output_text.delta') return
    text += event.delta
    events.push({ type: 'content.delta', turn, text: event.delta })
  })
  const utf8 = new TextDecoder()
  for await (const chunk of body) {
    frames.push(utf8.decode(chunk, { stream: true }))
    if (events.length > 0) await say(events.splice(0))
  }
  await query(END, [turn, randomUUID(), JSON.stringify({ text })])
  await say([{ type: 'turn.completed', turn }])
  reply.raw.end()
})

const inputItem = ({ role, content }) => ({
  type: 'message',
  role,
  content: [{ type: role === 'user' ? 'input_text' : 'output_text', text: content }],
})

async function openStore() {
  const url = process.env.DATABASE_URL
  if (url) {
    const database = new pg.Pool({ connectionString: url, max: 10 })
    await database.query(SCHEMA)
    return (text, values) => database.query({ name: text.slice(0, 40), text, values })
  }
  const database = await openEmbedded(folder)
  for (const statement of SCHEMA.split(';')) await database.query(statement)
  return (text, values) => database.query(text, values)
}

function openLog() {
  if (process.env.REDIS_URL) {
    const redis = new Redis(process.env.REDIS_URL)
    return { append: (turn, events) => redis.xadd(turn, '*', 'd', JSON.stringify(events)) }
  }
  const logs = new Map()
  return {
    async append(turn, events) {
      const known = logs.get(turn) ?? []
      logs.set(turn, known)
      return known.push(...events)
    },
  }
}

await app.listen({ port: Number(port), host: '127.0.0.1', backlog: 4096 })
console.log('ready')
