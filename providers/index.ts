/**
 * The table of deployments. A provider that speaks a known protocol is one more row here, plus its id, key and root in
 * `src/config/settings.ts` (CONTRIBUTING.md, "Add a provider").
 */
import type { Base } from '../src/config/settings.ts'
import type { OAuthVendor } from '../src/oauth-vendor.ts'
import type { Deployment } from '../src/provider.ts'
import { anthropic, anthropicOauth } from './anthropic/index.ts'
import { anthropicLogins } from './anthropic/oauth.ts'
import { codeAssist, gemini, geminiOauth } from './gemini/index.ts'
import { googleLogins } from './gemini/oauth.ts'
import { chatgpt, openai } from './openai/index.ts'
import { openaiLogins } from './openai/oauth.ts'

/** `base` names the setting that holds the deployment's upstream root: `<base>_base_url`. */
export interface Row {
  deployment: Deployment
  base: Base
}

/** One row for each wire protocol and kind of credential; the first that fits a credential serves it. */
export const DEPLOYMENTS: readonly Row[] = [
  { deployment: openai, base: 'openai' },
  { deployment: chatgpt, base: 'chatgpt' },
  { deployment: anthropic, base: 'anthropic' },
  { deployment: anthropicOauth, base: 'anthropic' },
  { deployment: gemini, base: 'gemini' },
  { deployment: codeAssist, base: 'code_assist' },
  { deployment: geminiOauth, base: 'gemini' },
]

/** Vendors that one can log in to; `base` names the API root that the logins are for. */
export const LOGINS: readonly { vendor: OAuthVendor; base: Row['base'] }[] = [
  { vendor: openaiLogins, base: 'chatgpt' },
  { vendor: anthropicLogins, base: 'anthropic' },
  { vendor: googleLogins, base: 'code_assist' },
]
