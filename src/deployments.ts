/**
 * The table of deployments as it is configured: which one serves a credential, its root, and what the operator adds to
 * its requests.
 */
import type { Row } from '../providers/index.ts'
import type { Config } from './config/config.ts'
import { invalid } from './errors.ts'
import type { Deployment, DeploymentOptions } from './provider.ts'

/** The part of a credential that decides which deployment serves it; a login without `path` is for Code Assist. */
type Served = Deployment['credential']

/** The deployment that serves a credential, with what the operator adds to its requests. */
export interface Serving {
  deployment: Deployment
  options: DeploymentOptions
}

interface Deployments {
  /** The ids of the providers, each once */
  readonly providers: readonly string[]
  /**
   * The deployment that serves the credential; without one, the provider's first. Throws invalid_request if there is
   * none.
   */
  servedBy(provider: string, credential: Served | null): Serving
  /** Without a trailing slash */
  baseUrl(deployment: Deployment): string
}

export function createDeployments(
  table: readonly Row[],
  config: Pick<Config, 'baseUrls' | 'loginExtras' | 'deploymentOptions'>,
): Deployments {
  const all = table.map(({ deployment }) => deployment)
  const providers = [...new Set(all.map(({ provider }) => provider))]
  const configured = new Map(
    table.map(({ deployment, base }) => [
      deployment,
      { baseUrl: config.baseUrls[base], options: optionsOf(deployment, config) },
    ]),
  )

  function configuredOf(deployment: Deployment) {
    const found = configured.get(deployment)
    if (found) return found
    throw new Error(`deployment ${deployment.id} is not in the table`)
  }

  function deploymentFor(provider: string, { kind, path = 'code_assist' }: Served): Deployment {
    const found = all.find(
      ({ provider: id, credential: served }) =>
        id === provider && served.kind === kind && (served.path === undefined || served.path === path),
    )
    if (found) return found
    throw invalid('credential_id', `No deployment of ${provider} serves this kind of credential.`)
  }

  function firstOf(provider: string): Deployment {
    const found = all.find((one) => one.provider === provider)
    if (found) return found
    throw invalid('provider', `Provider must be one of: ${providers.join(', ')}.`)
  }

  return {
    providers,
    servedBy(provider, credential) {
      const deployment = credential ? deploymentFor(provider, credential) : firstOf(provider)
      return { deployment, options: configuredOf(deployment).options }
    },
    baseUrl: (deployment) => configuredOf(deployment).baseUrl,
  }
}

/** The operator's extras are for logins only (ARCHITECTURE.md rule 11). */
function optionsOf(
  { provider, credential }: Deployment,
  config: Pick<Config, 'loginExtras' | 'deploymentOptions'>,
): DeploymentOptions {
  const extras = credential.kind === 'oauth' ? config.loginExtras[provider] : undefined
  return { system_blocks: [], headers: {}, ...extras, ...config.deploymentOptions }
}
