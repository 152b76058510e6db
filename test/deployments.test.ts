/** Which deployment serves a credential, and what the operator adds to its requests. */
import t from 'tap'
import { DEPLOYMENTS } from '../providers/index.ts'
import type { Config } from '../src/config/config.ts'
import { PROVIDER_IDS } from '../src/config/settings.ts'
import { createDeployments } from '../src/deployments.ts'
import { thrownBy } from './providers/streams.ts'

const baseUrls = Object.fromEntries(
  DEPLOYMENTS.map(({ base }) => [base, `https://${base}.test`]),
) as Config['baseUrls']
const extras = { system_blocks: ['first'], headers: { 'x-team': 'research' } }
const config = {
  baseUrls,
  loginExtras: { anthropic: extras },
  deploymentOptions: { dual_declarations: true, unstored: true },
}
const deployments = createDeployments(DEPLOYMENTS, config)

t.test('a credential is served by the deployment for its kind and API', async (t) => {
  const served = (provider: string, kind: 'api_key' | 'oauth', path?: 'code_assist' | 'public') => {
    const { deployment } = deployments.servedBy(provider, { kind, ...(path ? { path } : {}) })
    return [deployment.id, deployments.baseUrl(deployment)]
  }
  t.same(served('openai', 'api_key'), ['openai', baseUrls.openai])
  t.same(served('openai', 'oauth'), ['chatgpt', baseUrls.chatgpt])
  t.same(served('gemini', 'oauth', 'public'), ['gemini-oauth', baseUrls.gemini])
  t.same(served('gemini', 'oauth', 'code_assist'), ['code-assist', baseUrls.code_assist])
  t.same(served('gemini', 'oauth'), ['code-assist', baseUrls.code_assist], 'a login for no API in particular')
  t.same(deployments.providers, PROVIDER_IDS, 'each provider that is configured, in that order')
  const none = thrownBy(() => served('nobody', 'api_key'))
  t.match(none, { code: 'invalid_request', param: 'credential_id' })
})

t.test('without a credential a provider is served by its first deployment', async (t) => {
  t.equal(deployments.servedBy('gemini', null).deployment.id, 'gemini')
  const none = thrownBy(() => deployments.servedBy('nobody', null))
  t.match(none, { code: 'invalid_request', param: 'provider', message: /openai, anthropic, gemini/ })
})

t.test('the operator’s system blocks and headers are added for logins alone', async (t) => {
  const options = (kind: 'api_key' | 'oauth') => deployments.servedBy('anthropic', { kind }).options
  t.match(options('oauth'), { system_blocks: ['first'], headers: { 'x-team': 'research' } })
  t.same(options('api_key'), { system_blocks: [], headers: {}, dual_declarations: true, unstored: true })
})
