/**
 * What a model is shown of a session's tools: declarations whose bytes stay, lists of
 * hundreds under legal names, results that are too long.
 */
import { readdirSync, readFileSync } from 'node:fs'
import type { Test } from 'tap'
import { calls, text } from '../emulators/scene.ts'
import { AVAILABLE, NONE } from '../patterns.ts'
import { eventually } from '../waiting.ts'
import type { Json } from './client.ts'
import { declaredIn, fresh, type Path, pathsIn, type World } from './harness.ts'
import { type TestTool, type ToolServer, textResult } from './tool-server.ts'

// ---------------------------------------------------------------- declarations

export async function declarations(t: Test, world: World) {
  const { api } = world
  const schema = (words: string) => ({
    type: 'object',
    properties: { q: { type: 'string', description: words } },
    required: ['q'],
  })
  for (const path of pathsIn(world)) {
    await t.test(`the declarations of tools that stay keep their bytes: ${path}`, async (t) => {
      const { name, server } = await fresh(world, {
        a: { inputSchema: schema('a') },
        b: { inputSchema: schema('b') },
      })
      const session = await world.session(path, { connectors: [name] })
      const { provider } = await world.get(session)
      const declared = async () =>
        (await api.get(`/v1/sessions/${session}/tools?provider=${provider}`)).declarations
      const before = flat(await declared())
      server.tools.set('0-first-by-name', { inputSchema: schema('z') })
      const change = await api.post(`/v1/sessions/${session}/tools/refresh`)
      t.match(change, { added: [`${name}.0-first-by-name`], prompt_cache: 'invalidated' })
      const after = flat(await declared())
      t.strictSame(
        after.slice(0, before.length),
        before,
        'the declarations stay byte for byte, in their old places',
      )
      t.equal(after.length, before.length + 1)
      server.tools.set('b', { inputSchema: schema('b, but better') })
      t.match(await api.post(`/v1/sessions/${session}/tools/refresh`), {
        changed: [`${name}.b`],
        added: NONE,
        removed: NONE,
      })
      await world.run(session, 'hello')
      const body = world.sent(path).at(-1)?.text ?? ''
      for (const one of flat(await declared()))
        t.ok(body.includes(one), 'the declarations shown are those sent')
      const rendered = await api.post(`/v1/sessions/${session}/render`, { input: 'x' })
      t.strictSame(declaredIn({ body: rendered.body } as never), declaredIn(world.sent(path).at(-1) as never))
    })
  }

  await t.test('an alias replaces the server’s name, and is refused for a second server', async (t) => {
    const { name } = await fresh(world, { it: {} })
    const session = await world.session('anthropic key')
    const bound = await api.put(`/v1/sessions/${session}/connectors/${name}`, { alias: 'docs' })
    t.strictSame(bound.added, ['docs.it'])
    const other = await fresh(world, { it: {} })
    const clash = await api.call('PUT', `/v1/sessions/${session}/connectors/${other.name}`, { alias: 'docs' })
    t.match([clash.status, clash.body.error.code, clash.body.error.param], [409, 'name_taken', 'alias'])
    t.equal((await world.run(session, 'call docs__it with {}')).output_text, 'The tools answered: it ran')
    const renamed = await api.put(`/v1/sessions/${session}/connectors/${name}`, { alias: 'papers' })
    t.match(renamed, { added: ['papers.it'], removed: ['docs.it'] })
    const bound2 = (await api.get(`/v1/sessions/${session}/connectors`)).data
    t.match(bound2, [{ name, alias: 'papers' }])
  })

  await t.test('calls for unknown connectors and tools are answered with 404', async (t) => {
    const session = await world.session('openai key')
    const put = await api.call('PUT', `/v1/sessions/${session}/connectors/nobody`)
    t.match([put.status, put.body.error.code], [404, 'connector_not_found'])
    const del = await api.call('DELETE', `/v1/sessions/${session}/connectors/nobody`)
    t.match([del.status, del.body.error.code], [404, 'connector_not_found'])
    const patch = await api.call('PATCH', `/v1/sessions/${session}/tools/nobody.x`, { enabled: true })
    t.match([patch.status, patch.body.error.code], [404, 'tool_not_found'])
  })
}

/** Declarations one by one as JSON text, whatever groups a vendor puts them in. */
const flat = (declarations: Json[]): string[] =>
  declarations
    .flatMap((one) => one.functionDeclarations ?? one.function_declarations ?? [one])
    .map((one) => JSON.stringify(one))

// ---------------------------------------------------------------- hundreds of tools

export async function hundreds(t: Test, world: World) {
  const folder = new URL('../../../test/fixtures/mcp-tools/', import.meta.url)
  const lists = readdirSync(folder)
    .filter((file) => file.endsWith('.json'))
    .map((file) => ({ name: file.replace('.json', ''), tools: listOf(new URL(file, folder)) }))
  const servers = new Map<string, ToolServer>()
  for (const { name, tools } of lists) servers.set(name, await world.tools(name, tools))
  const names = [...servers.keys()]
  const total = lists.reduce((sum, { tools }) => sum + Object.keys(tools).length, 0)
  t.ok(total > 200, `${total} tools`)

  const registry = async (session: string) =>
    (await world.api.get(`/v1/sessions/${session}/tools`)).tools as Json[]
  const namesOf = (tools: Json[]) =>
    tools.map((tool) => [tool.canonical_name, tool.provider_exposed_name]).sort()
  const seen = new Map<Path, Json[]>()
  for (const path of pathsIn(world)) {
    await t.test(`all tools of all lists are declared, each under its own legal name: ${path}`, async (t) => {
      const session = await world.session(path, { connectors: names })
      const turn = await world.run(session, 'hello')
      t.equal(turn.state, 'completed')
      const sent = declaredIn(world.sent(path).at(-1) as never)
      t.equal(new Set(sent).size, sent.length, 'no name twice')
      for (const name of sent) t.match(name, /^[A-Za-z0-9_-]{1,63}$/)
      const tools = await registry(session)
      seen.set(path, tools)
      t.equal(sent.length, turn.steps[0].tool_count)
      const left = tools.filter(({ status }) => status === 'undeclarable')
      t.equal(sent.length + left.length, tools.length, 'a tool that is left out says so')
      for (const { reason } of left) t.type(reason, 'string')
      if (path === 'openai key') {
        t.equal(sent.length, 128)
        const first = tools
          .filter(({ status }) => status !== 'undeclarable')
          .map(({ provider_exposed_name }) => provider_exposed_name.openai)
        t.strictSame(sent, first)
        const { notes } = await world.api.post(`/v1/sessions/${session}/render`, { input: 'x' })
        const over = left.filter(({ reason }) => /at most 128/.test(reason))
        t.ok(over.length > 70)
        for (const { canonical_name } of over)
          t.ok(notes.some((note: string) => note.startsWith(`${canonical_name}: `)))
      } else
        t.ok(
          left.length < 20,
          left.map(({ canonical_name, reason }) => `${canonical_name}: ${reason}`).join('\n'),
        )
    })
  }
  await t.test('tool names do not depend on the path, the order of binding, or the process', async (t) => {
    const first = namesOf(seen.get('openai key') ?? [])
    for (const tools of seen.values()) t.strictSame(namesOf(tools), first)
    const session = await world.session('anthropic key', { connectors: [...names].reverse().slice(4) })
    for (const name of names.slice(-4)) await world.api.put(`/v1/sessions/${session}/connectors/${name}`)
    t.strictSame(namesOf(await registry(session)), first)
    const before = await registry(session)
    await world.restart()
    await world.run(session, 'hello')
    t.strictSame(
      (await registry(session)).map(({ canonical_name, provider_exposed_name, parameters }) => [
        canonical_name,
        provider_exposed_name,
        parameters,
      ]),
      before.map(({ canonical_name, provider_exposed_name, parameters }) => [
        canonical_name,
        provider_exposed_name,
        parameters,
      ]),
    )
  })
}

function listOf(file: URL): Record<string, TestTool> {
  const content: Json = JSON.parse(readFileSync(file, 'utf8'))
  const tools: Json[] = Array.isArray(content) ? content : content.tools
  return Object.fromEntries(
    tools.map(({ name, description, inputSchema, annotations }) => [
      name,
      { description, inputSchema, annotations },
    ]),
  )
}

// ---------------------------------------------------------------- long results

export async function longResults(t: Test, world: World) {
  const { api } = world
  const lines = Array.from({ length: 20_000 }, (_, i) => `line ${i}: Zeile nummer ${i} äöü €`).join('\n')
  const rows = Array.from({ length: 3_000 }, (_, i) => ({
    id: i,
    name: `row ${i}`,
    note: 'something to fill the line',
  }))
  const { name } = await fresh(world, {
    text: { run: () => textResult(lines) },
    rows: {
      run: () => ({
        content: [{ type: 'text', text: JSON.stringify({ rows }) }],
        structuredContent: { rows },
      }),
    },
  })
  await t.test(`a long result is given as head and tail with a notice, kept whole, and read`, async (t) => {
    const session = await world.session('openai key', { connectors: [name] })
    let exec = ''
    world.script((_, { step, results }) => {
      if (step === 0) return calls([`${name}__text`, {}])
      if (step > 1) return text('read')
      exec = /exec_[a-z0-9]{20,}/.exec(results[0] ?? '')?.[0] ?? ''
      return calls(['inspect_tool_output', { exec_id: exec, offset: 40_960, limit: 200 }])
    })
    const turn = await world.run(session, 'go')
    t.equal(turn.output_text, 'read')
    const [first, second] = turn.messages
      .filter(({ role }: Json) => role === 'tool')
      .map(({ parts }: Json) => parts[0])
    const bytes = Buffer.byteLength(lines)
    t.match(first, { outcome: 'ok', spill: { exec_id: exec, bytes } })
    t.ok(Buffer.byteLength(first.content[0].text) < 70_000)
    t.ok(first.content[0].text.startsWith('line 0:') && first.content[0].text.endsWith(lines.slice(-100)))
    const [head] = first.content[0].text.split('\n\n[The result is ')
    const [next] = second.content[0].text.split('\n\n[Bytes ')
    t.equal(lines.slice(0, head.length + next.length), head + next, 'the model reads on where the head ended')
    let all = ''
    for (let offset = 0, more = true; more; ) {
      const slice = await api.get(`/v1/tool-executions/${exec}/output?offset=${offset}&limit=250000`)
      t.equal(slice.total_bytes, bytes)
      all += slice.content
      more = slice.next_offset !== null
      offset = slice.next_offset
    }
    t.equal(all, lines)
    world.script(null)
  })

  await t.test('a long structured result is walked by JSON Pointer', async (t) => {
    const session = await world.session('openai key', { connectors: [name] })
    const turn = await world.run(session, `call ${name}__rows with {}`)
    const [{ spill }] = turn.messages[2].parts
    const at = (path: string) =>
      api.get(`/v1/tool-executions/${spill.exec_id}/output?path=${encodeURIComponent(path)}`)
    t.strictSame(JSON.parse((await at('/rows/2999')).content), rows[2999])
    t.equal((await at('/rows/7/name')).content, 'row 7')
    const lost = await api.call('GET', `/v1/tool-executions/${spill.exec_id}/output?path=/rows/3000`)
    t.match([lost.status, lost.body.error.param], [400, 'path'])
  })
}

// ---------------------------------------------------------------- servers

export async function servers(t: Test, world: World) {
  const { api } = world
  const shown = async (session: string): Promise<Json[]> =>
    (await world.api.get(`/v1/sessions/${session}/connectors`)).data
  const [changed, empty] = [await fresh(world, { one: {} }), await fresh(world, {})]
  const session = await world.session('openai key', { connectors: [changed.name, empty.name] })

  await t.test('a server that went away is unavailable, also where none of its tools says so', async (t) => {
    changed.server.tools.set('one', { description: 'Another.' })
    await api.post(`/v1/sessions/${session}/tools/refresh`)
    const { tools } = await api.get(`/v1/sessions/${session}/tools`)
    t.match(tools.at(-1), { canonical_name: `${changed.name}.one`, status: 'changed' })
    t.match(await shown(session), [{ status: AVAILABLE }, { status: AVAILABLE }])
    await changed.server.close()
    await api.post(`/v1/sessions/${session}/tools/refresh`)
    const expected = [{ status: AVAILABLE }, { status: 'unavailable', reason: /\w/ }]
    t.match(await shown(session), expected)
  })

  await t.test(
    'a server that a call finds away is unavailable until it is back, and stays declared',
    async (t) => {
      for (const mood of ['refusing', 'closed'] as const) {
        const { name, server } = await fresh(world, { one: {} })
        const id = await world.session('openai key', { connectors: [name] })
        const look = () => api.get(`/v1/sessions/${id}/tools?provider=openai`)
        await world.run(id, `call ${name}__one with {}`)
        const before = await look()
        if (mood === 'closed') await server.close()
        else server.mood(mood)
        await world.run(id, `call ${name}__one with {}`)
        const away = await eventually(look, ({ tools }) => tools.at(-1).status === 'unavailable')
        t.match(away.tools.at(-1), { canonical_name: `${name}.one`, reason: /not available/ }, mood)
        t.match(await shown(id), [{ status: 'unavailable' }])
        t.strictSame(away.declarations, before.declarations, `${mood}: no prompt cache is lost`)
        for (const _ of [1, 2, 3]) await world.run(id, `call ${name}__one with {}`)
        t.equal((await look()).revision, before.revision + 1, `${mood}: further failures change nothing`)
        if (mood === 'closed') continue
        server.mood('well')
        // On a slow machine three attempts may have failed by now: a call in the pause that follows does not reach it.
        await eventually(
          () => world.run(id, `call ${name}__one with {}`),
          () => server.count('one') === 2,
        )
        const back = await eventually(look, ({ tools }) => tools.at(-1).status === 'available')
        t.equal(back.revision, before.revision + 2)
      }
    },
  )

  await t.test('a server without tools is available after a restart as before it', async (t) => {
    await world.restart()
    const all = await shown(session)
    t.match(
      all.find(({ name }) => name === empty.name),
      { status: AVAILABLE },
    )
  })
}
