/** Health, readiness and metrics. */
import { Type } from 'typebox'
import { BatonError } from '../src/errors.ts'
import { VERSION } from '../src/version.ts'
import { within } from '../src/within.ts'
import type { App, RouteDeps } from './app.ts'

const Health = Type.Object({ status: Type.String(), version: Type.String() })
const Ready = Type.Object({ status: Type.Literal('ready') })

/** A dependency that has not answered by then is not ready. */
const READY_MS = 3000

/** Outside /v1, for probes and scrapers; no key needed. */
export function operateRoutes(app: App, deps: RouteDeps): void {
  const { store, bus, metrics, isDraining } = deps

  app.get(
    '/healthz',
    { schema: { operationId: 'getHealth', summary: 'The process is up', response: { 200: Health } } },
    async () => ({ status: 'ok', version: VERSION }),
  )
  app.get(
    '/readyz',
    {
      schema: {
        operationId: 'getReadiness',
        summary: 'Store, bus and migrations are ready, and the process is not draining',
        errors: ['draining'],
        response: { 200: Ready },
      },
    },
    async () => {
      if (isDraining()) throw notReady('draining', 'The process is shutting down')
      const reason = (await failure('store', store.ready())) ?? (await failure('bus', bus.ready()))
      if (reason !== null) throw notReady('unavailable', reason)
      return { status: 'ready' }
    },
  )
  app.get(
    '/metrics',
    {
      schema: {
        operationId: 'getMetrics',
        summary: 'Metrics for Prometheus',
        response: {
          200: { description: 'Metrics', content: { 'text/plain': { schema: { type: 'string' } } } },
        },
      },
    },
    async (_, reply) => reply.type(metrics.contentType).send(await metrics.text()),
  )
}

const notReady = (code: 'draining' | 'unavailable', reason: string) =>
  new BatonError(code, `Not ready: ${reason.replace(/\.$/, '')}.`, { retryAfter: 1, details: { reason } })

/** Why a dependency is not ready; null if it is. */
async function failure(name: string, ready: Promise<void>): Promise<string | null> {
  const answer = ready.then(
    () => ({ problem: null }),
    (error: unknown) => ({ problem: error instanceof Error ? error.message : 'failed' }),
  )
  const { problem } = (await within(READY_MS, answer)) ?? { problem: 'no answer' }
  return problem === null ? null : `${name}: ${problem}`
}
