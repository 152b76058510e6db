/** Baton's API as the scenarios use it, and the targets that the load generator compares. */

/** Throws for any status that is not 2xx. */
export async function call(gateway, method, path, body) {
  const response = await fetch(gateway.base + path, {
    method,
    ...(body === undefined
      ? {}
      : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
  })
  const text = await response.text()
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text.slice(0, 300)}`)
  return text === '' ? null : JSON.parse(text)
}

/** `count` new sessions, some at once. */
export async function openSessions(gateway, count, body) {
  const ids = []
  const worker = async () => {
    while (ids.length < count) {
      const at = ids.push('') - 1
      ids[at] = (await call(gateway, 'POST', '/v1/sessions', body)).id
    }
  }
  await Promise.all(Array.from({ length: Math.min(8, count) }, worker))
  return ids
}

/** `count` short messages, taking turns, as the history of a session. */
export const historyOf = (count, bytes = 360) =>
  Array.from({ length: count }, (_, i) => ({
    role: i % 2 === 0 ? 'user' : 'assistant',
    text: `${i} `.padEnd(bytes, 'the quick brown fox jumps over the lazy dog '),
  }))

export async function seed(gateway, session, history) {
  for (let at = 0; at < history.length; at += 500) {
    const messages = history
      .slice(at, at + 500)
      .map(({ role, text }) => ({ role, parts: [{ type: 'text', text }] }))
    await call(gateway, 'POST', `/v1/sessions/${session}/messages`, { messages })
  }
}

const INPUT = 'Say something about the lazy dog.'

/** The provider itself. */
export const direct = (upstream) => ({
  base: upstream.base,
  build: ({ slug }) => ({
    path: '/v1/responses',
    body: { model: `fake-${slug}`, stream: true, input: [{ type: 'message', role: 'user', content: INPUT }] },
  }),
})

export const bare = (gateway, { history = [], tools } = {}) => ({
  base: gateway.base,
  baseline: 'direct',
  pids: () => [gateway.pid],
  build: ({ slug }) => ({
    path: '/v1/turns',
    body: {
      model: `fake-${slug}`,
      messages: [
        ...history.map(({ role, text }) => ({ role, content: text })),
        { role: 'user', content: INPUT },
      ],
      tools,
    },
  }),
})

/** Each stream is a turn in the next session of the list. */
export function baton(gateway, sessions) {
  let at = 0
  return {
    base: gateway.base,
    baseline: 'direct',
    pids: () => [gateway.pid],
    build: ({ slug }) => ({
      path: `/v1/sessions/${sessions[at++ % sessions.length]}/turns`,
      body: { input: INPUT, model: `fake-${slug}` },
    }),
  }
}
