/** Where secrets in calls and results are found again: with the tool and the model alone. */
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { calls } from '../emulators/scene.ts'
import type { Json } from './client.ts'
import { openWorld } from './harness.ts'
import { textResult } from './tool-server.ts'
import { DYNAMIC, mcp, recorder, served } from './toolbox.ts'

/** Built from pieces, so that no scanner takes this file for a leak. */
const SECRETS = [
  `AKIA${'QWERTYUIOPASDFGH'}`,
  `ghp_${'a1B2'.repeat(9)}`,
  `xoxb-${'123456789012-123456789012-'}${'abcDEF123456'.repeat(2)}`,
  `eyJ${'hbGciOiJIUzI1NiJ9'}.eyJ${'zdWIiOiIxMjM0NTY3ODkwIn0'}.${'dozjgNryP4J3jVmNHl0w5N'}`,
  `MIIEow${'Qz7'.repeat(40)}`,
] as const
const PEM = (body: string) =>
  `-----BEGIN RSA ${'PRIVATE KEY'}-----\n${body}\n-----END RSA ${'PRIVATE KEY'}-----`
const PLAIN = 'plain-words-that-are-no-secret'

t.test('secrets reach the tool and the model, and stand nowhere else in the clear', async (t) => {
  const [aws, github, slack, jwt, key] = SECRETS
  const server = await served(t, {
    login: { run: ({ args }) => textResult(`${slack}, ${jwt} for ${JSON.stringify(args)} ${PLAIN}`) },
    fails: { run: () => Promise.reject(new Error(`refused ${github} and ${PEM(key)}`)) },
    denied: {},
    edited: {},
  })
  const yaml = `toolbox:\n  mcps:\n${mcp('vault', server.url, `${DYNAMIC}, require_approval: always`)}`
  const { log, text } = recorder()
  const world = await openWorld(t, 'embedded', { yaml, log })
  const session = await world.session('anthropic key')
  const args = { id: aws, token: github, nested: { pem: PEM(key) }, note: PLAIN }
  const asked = [`login with ${JSON.stringify(args)}`, 'fails with {}', 'denied with {}', 'edited with {}']
  const input = `think\n${asked.map((call) => `call vault__${call}`).join('\n')}`
  const turn = await world.run(session, input)
  t.equal(turn.state, 'awaiting_input')
  await world.restart()
  const open = (await world.api.get(`/v1/tool-executions?turn_id=${turn.id}`)).data
  const answers: Record<string, Json> = {
    'vault.denied': { decision: 'deny', reason: `Never with ${slack}, ${PLAIN}!` },
    'vault.edited': { decision: 'approve', arguments: { token: github, note: PLAIN } },
  }
  for (const { call_id, tool } of open) {
    const answer = answers[tool] ?? { decision: 'approve' }
    await world.api.post(`/v1/turns/${turn.id}/approvals/${call_id}`, answer)
  }
  const done = await world.api.get(`/v1/turns/${turn.id}?wait=60`)
  t.equal(done.state, 'completed', 'the signed turn was replayed')
  t.strictSame(
    server.calls.find(({ tool }) => tool === 'login')?.args,
    args,
    'the tool gets its real arguments',
  )
  t.strictSame(server.calls.find(({ tool }) => tool === 'edited')?.args, answers['vault.edited']?.arguments)
  const said = (await world.messages(session)).find(({ role }) => role === 'tool').parts
  t.match(said[2], {
    outcome: 'denied',
    content: [{ text: 'The user denied this call; it was not run: Never with [redacted], plain-words' }],
  })
  t.match(await world.run(session, `and again ${github}`), { state: 'completed' })
  const told = JSON.stringify(world.sent('anthropic key').at(-1)?.body)
  for (const secret of SECRETS) t.ok(told.includes(secret), 'the model still has what was said')
  world.script((_, { step }) => (step === 0 ? calls([`made-up-${github}`, {}]) : null))
  t.match(await world.run(session, 'hello'), { state: 'completed' })

  const { data } = await world.api.get(`/v1/tool-executions?session_id=${session}`)
  const outputs = await Promise.all(
    data.map(({ id }: Json) => world.api.get(`/v1/tool-executions/${id}/output`)),
  )
  const metrics = await (await fetch(`${world.api.url}/metrics`)).text()
  const shown = JSON.stringify([data, outputs])
  t.match(shown, PLAIN)
  t.equal(data.length, 5)
  t.equal(data[0].tool, 'made-up-[redacted]', 'a secret in a tool name that the model made up is redacted')
  t.match(metrics, 'baton_tool_calls_total{tool="unknown",outcome="error"} 1')
  await world.stop()
  const files = everything(join(world.folder, 'data'))
  t.ok(files.includes(Buffer.from(PLAIN)), 'the search finds what is there')
  for (const secret of SECRETS) {
    const what = secret.slice(0, 6)
    t.notOk(shown.includes(secret), `${what}…: the ledger`)
    t.notOk(text().includes(secret), `${what}…: the log`)
    t.notOk(metrics.includes(secret), `${what}…: the metrics`)
    t.notOk(files.includes(Buffer.from(secret)), `${what}…: the files`)
  }
})

/** All files below a folder as one. */
function everything(folder: string): Buffer {
  const files = readdirSync(folder, { recursive: true }).map((name) => join(folder, String(name)))
  return Buffer.concat(files.filter((path) => statSync(path).isFile()).map((path) => readFileSync(path)))
}
