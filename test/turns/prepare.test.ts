/** From a session's state to one request: its settings, and the context with which its answer is read. */
import t from 'tap'
import type { MessageInput } from '../../src/chat/message.ts'
import { exposedName } from '../../src/chat/names.ts'
import type { Deployment } from '../../src/provider.ts'
import type { RegistryRow } from '../../src/store/store.ts'
import { prepare, prepareStep } from '../../src/turns/prepare.ts'
import type { Run } from '../../src/turns/run.ts'

const deployment = { capabilities: () => ({ takesMedia: () => true }) } as unknown as Deployment

type Deps = Parameters<typeof prepare>[0]
type Preparation = Parameters<typeof prepare>[1]

const depsWhere = (declared: readonly string[], ask: Deps['llm']['models']['ask'] = () => {}) =>
  ({
    servedBy: () => ({ deployment, options: { headers: { 'x-team': 'research' } } }),
    llm: { models: { known: () => undefined, ask } },
    tools: {
      overlay: async () => ({
        tools: [],
        byExposed: new Map(declared.map((name) => [exposedName(name), { tool: { canonical_name: name } }])),
      }),
    },
  }) as unknown as Deps

/** What is prepared when these tools are declared. */
async function preparedWhere(declared: readonly string[], from: Partial<Preparation> = {}) {
  return prepare(depsWhere(declared), {
    session: { id: 'ses_1', instructions: '', settings: {} },
    provider: 'acme',
    model: 'acme-1',
    credential: { facts: { id: 'cred_1' } } as Preparation['credential'],
    history: [],
    stored: [],
    registry: {} as RegistryRow,
    refused: undefined,
    followUp: false,
    ...from,
  })
}
const contextWhere = async (...given: Parameters<typeof preparedWhere>) =>
  (await preparedWhere(...given)).context

t.test("a provider's list of models is asked for with the operator's headers", async (t) => {
  const asked: unknown[] = []
  const deps = depsWhere([], (_, caller) => void asked.push(caller))
  const session = { id: 'ses_1', instructions: '', settings: {} }
  const credential = { facts: { id: 'cred_1' } }
  const active = { turn: { context: [] } }
  const run = { deps, session, credential, active, history: [], edited: [], registry: {} }
  await prepareStep(run as unknown as Run)
  t.strictSame(asked, [{ ...credential, headers: { 'x-team': 'research' } }])
})

t.test('a declared name is known behind a namespace that the model made up', async (t) => {
  const context = await contextWhere(['files.read', 'files.inspect_tool_output', 'inspect_tool_output'])
  for (const name of ['files__read', 'functions.files__read', 'default_api:files__read', 'a.b:files__read']) {
    t.equal(context.toolName(name), 'files.read', name)
  }
  for (const name of ['files.read', 'default_api:files.read', 'functions.files.read']) {
    t.equal(context.toolName(name), 'files.read', 'its canonical name is known, too')
  }
  t.equal(
    context.toolName('files.inspect_tool_output'),
    'files.inspect_tool_output',
    '`files` is the server of this tool, no made-up namespace',
  )
  for (const name of ['files__write', 'functions.files__write', 'functions.', 'files__read.x']) {
    t.equal(context.toolName(name), name, 'a name that matches no tool stays whole')
  }
  t.equal(context.toolName(`a\0${'b'.repeat(600)}`), `a_${'b'.repeat(510)}`, 'it fits into a message')
})

t.test("a call's id that the session already has, shown to the model or not, is replaced", async (t) => {
  const asks = (call_id: string): MessageInput => ({
    role: 'assistant',
    parts: [{ type: 'tool_call', call_id, name: 'files.read', arguments: {} }],
  })
  const context = await contextWhere([], { stored: [asks('call_1')], history: [asks('call_2')] })
  for (const id of ['call_1', '1', 'call_2'])
    t.match(context.callId(id), /^call_[a-z0-9]{24}$/, `${id} is replaced`)
  t.equal(context.callId('call_3'), 'call_3', "a new id stays the vendor's")
  t.not(context.callId('call_3'), 'call_3', 'the same id is replaced the second time')
})

t.test("a call's id that some vendor would refuse is replaced, and others keep the vendor's", async (t) => {
  const context = await contextWhere([])
  for (const id of [undefined, '', 'a.b', '.ab', 'ab\n', 'x'.repeat(60)])
    t.match(context.callId(id), /^call_[a-z0-9]{24}$/, JSON.stringify(id))
  for (const id of ['toolu_01-A', 'x'.repeat(59)]) t.equal(context.callId(id), `call_${id}`)
})

t.test('a forced tool choice holds for the first request of a turn, and none for each', async (t) => {
  const settings = { temperature: 0.5 }
  for (const [asked, first, later] of [
    ['required', 'required', 'auto'],
    ['auto', 'auto', 'auto'],
    ['none', 'none', 'none'],
    [{ name: 'files__read' }, { name: 'files.read' }, 'auto'],
    [{ name: 'files.gone' }, { name: 'files.gone' }, 'auto'],
  ] as const) {
    for (const [followUp, tool_choice] of [
      [false, first],
      [true, later],
    ] as const) {
      const session = { id: 'ses_1', instructions: '', settings: { ...settings, tool_choice: asked } }
      const { request } = await preparedWhere(['files.read'], { session, followUp })
      t.strictSame(request.settings, { ...settings, tool_choice }, JSON.stringify(asked))
    }
  }
  const session = { id: 'ses_1', instructions: '', settings }
  const { request } = await preparedWhere([], { session, followUp: true })
  t.strictSame(request.settings, settings, 'no choice is made for whoever made none')
})
