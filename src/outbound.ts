/** Connections outwards: how patiently an address is dialled, and the forward proxy of a network that has no other way out. */
import { Agent, type Dispatcher, EnvHttpProxyAgent } from 'undici'

/** Its URL, and what is reached without it: hosts and domains, separated by commas. */
export interface ForwardProxy {
  url: string
  except: string
}

/**
 * Node gives each address of a name but the last 250 ms, and none of them more at the end: a host farther away than that,
 * or whose first packet is lost, is never reached where its other address does not answer (nodejs/node#54359).
 */
export const PATIENT = { autoSelectFamily: true, autoSelectFamilyAttemptTimeout: 1_500 }

/** Relays and emulators of this machine; they alone may be plain http. */
const LOOPBACK = 'localhost,127.0.0.1,[::1]'

export function upstreamAgent(proxy: ForwardProxy | null, options: Agent.Options): Dispatcher {
  if (!proxy || proxy.except === '*') return new Agent({ ...PATIENT, ...options })
  const { url, except } = proxy
  // Nothing is left to the package to find in the environment.
  return new EnvHttpProxyAgent({
    ...PATIENT,
    ...options,
    httpProxy: '',
    httpsProxy: url,
    noProxy: `${except},${LOOPBACK}`,
  })
}
