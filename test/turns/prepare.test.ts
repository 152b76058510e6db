/** From a session's state to one request: what the request's own answer is read with. */
import t from 'tap'
import type { Deployment } from '../../src/provider.ts'
import type { RegistryRow } from '../../src/store/store.ts'
import { prepare } from '../../src/turns/prepare.ts'

const deployment = { capabilities: () => ({ takesMedia: () => true }) } as unknown as Deployment

t.test('a declared name is known behind a namespace that the model made up', async (t) => {
  const tool = { canonical_name: 'files.read' }
  const deps = {
    deploymentFor: () => deployment,
    optionsFor: () => ({}),
    llm: { reported: () => undefined },
    tools: { overlay: () => ({ tools: [], byExposed: new Map([['files__read', { tool }]]) }) },
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
  for (const name of ['files__write', 'functions.files__write', 'functions.', 'files__read.x']) {
    t.equal(context.toolName(name), name, 'no such tool, by its whole name')
  }
})
