/** Who can be logged in to: each vendor's description with the operator's settings for it. */
import type { Config } from '../../config/config.ts'
import { BatonError, invalid } from '../../errors.ts'
import type { LoginChoices, OAuthSettings, OAuthVendor } from '../../oauth-vendor.ts'

/** A vendor's description and the operator's settings for it. */
export interface ConfiguredVendor {
  vendor: OAuthVendor
  settings: OAuthSettings
}
export interface Vendors {
  /** Throws invalid_request for an unknown provider, oauth_not_enabled unless the operator switched it on. */
  get(provider: string): ConfiguredVendor
  /** The providers whose idle logins are renewed */
  keptAlive(): string[]
}

export function createVendors(
  vendors: readonly { vendor: OAuthVendor; base: keyof Config['baseUrls'] }[],
  config: Pick<Config, 'oauth' | 'baseUrls' | 'enableOauth'>,
): Vendors {
  const settings: Readonly<Record<string, Omit<OAuthSettings, 'baseUrl'>>> = config.oauth
  const rows = new Map(
    vendors.map(({ vendor, base }): [string, ConfiguredVendor] => [
      vendor.provider,
      {
        vendor,
        settings: { ...(settings[vendor.provider] ?? { clientId: null }), baseUrl: config.baseUrls[base] },
      },
    ]),
  )
  const isEnabled = (provider: string) => config.enableOauth.includes(provider)
  return {
    keptAlive: () =>
      [...rows]
        .filter(([provider, { vendor }]) => vendor.keepAlive && isEnabled(provider))
        .map(([provider]) => provider),
    get(provider) {
      const row = rows.get(provider)
      if (!row) {
        const known = [...rows.keys()].join(', ')
        throw invalid('provider', `provider must be one of: ${known}.`)
      }
      if (isEnabled(provider)) return row
      throw new BatonError(
        'oauth_not_enabled',
        `OAuth for ${provider} is off. The operator can switch it on by naming ${provider} in BATON_ENABLE_OAUTH.`,
      )
    },
  }
}

/** Throws invalid_request for a choice if the vendor's logins leave nothing to choose. */
export function assertChoices({ vendor }: ConfiguredVendor, choices: LoginChoices): void {
  const [field] = Object.keys(choices)
  if (field === undefined || vendor.setup) return
  throw invalid(field, `${vendor.provider} logins take no ${field}.`)
}
