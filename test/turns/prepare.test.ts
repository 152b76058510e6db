/** From a session's state to one request: what the request's own answer is read with. */
import t from 'tap'
import { exposedName } from '../../src/chat/names.ts'
import type { Deployment } from '../../src/provider.ts'
import type { RegistryRow } from '../../src/store/store.ts'
import { prepare } from '../../src/turns/prepare.ts'

const deployment = { capabilities: () => ({ takesMedia: () => true }) } as unknown as Deployment

t.test('a declared name is known behind a namespace that the model made up', async (t) => {
  const declared = ['files.read', 'files.inspect_tool_output', 'inspect_tool_output']
  const deps = {
    deploymentFor: () => deployment,
    optionsFor: () => ({}),
    llm: { models: { known: () => undefined, ask: () => {} } },
    tools: {
      overlay: () => ({
        tools: [],
        byExposed: new Map(declared.map((name) => [exposedName(name), { tool: { canonical_name: name } }])),
      }),
    },
  } as unknown as Parameters<typeof prepare>[0]
  const { context } = prepare(deps, {
    session: { id: 'ses_1', instructions: '', settings: {} },
    provider: 'acme',
    model: 'acme-1',
    credential: { facts: { id: 'cred_1' } } as Parameters<typeof prepare>[1]['credential'],
    history: [],
    registry: {} as RegistryRow,
    followUp: false,
  })
  for (const name of ['files__read', 'functions.files__read', 'default_api:files__read', 'a.b:files__read']) {
    t.equal(context.toolName(name), 'files.read', name)
  }
  for (const name of ['files.read', 'default_api:files.read', 'functions.files.read']) {
    t.equal(context.toolName(name), 'files.read', 'its canonical name, too')
  }
  t.equal(
    context.toolName('files.inspect_tool_output'),
    'files.inspect_tool_output',
    'no tool of the namespace',
  )
  for (const name of ['files__write', 'functions.files__write', 'functions.', 'files__read.x']) {
    t.equal(context.toolName(name), name, 'no such tool, by its whole name')
  }
})
