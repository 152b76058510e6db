/** Runs a vendor's steps between the tokens of a login and a credential that can be used. */
import type { LoginRow } from './login-table.ts'
import type { OAuthHttp } from './oauth-http.ts'

/** The facts found, to be added to the credential's. Throws a BatonError for an account that cannot be used. */
export async function setUp(
  { vendor, settings }: LoginRow,
  login: { accessToken: string; facts: Readonly<Record<string, string>> },
  { http, sleep }: { http: OAuthHttp; sleep(ms: number): Promise<unknown> },
): Promise<Record<string, string>> {
  if (!vendor.setup) return {}
  const steps = vendor.setup.steps(settings, login.accessToken, login.facts)
  let step = steps.next()
  while (!step.done) {
    const { call, afterMs } = step.value
    if (afterMs > 0) await sleep(afterMs)
    step = steps.next(await http.send(call))
  }
  return step.value
}
