/** What each provider reports of its models, kept for an hour a credential; a call never waits for it. */
import type { CredentialFacts, CredentialSecret, Deployment, ReportedModel } from '../provider.ts'

const FRESH_MS = 3_600_000
/** A vendor whose list fails is not asked again with every turn. */
const FAILED_MS = 60_000
/** Credentials come and go in a long-lived process. */
const MOST_LISTS = 500

/** Who asks: one list a deployment and credential. */
export interface ModelsCaller {
  facts: CredentialFacts
  secret(): Promise<CredentialSecret>
}
/** From what is known now; asks in the background where that is nothing or too old. */
type Reported = (deployment: Deployment, caller: ModelsCaller, model: string) => ReportedModel | undefined

interface Entry {
  known: readonly ReportedModel[] | null
  until: number
}

/** One ask at a time for each deployment and credential; what it found is kept for a while, a failure shorter. */
export function createModels(
  fetchList: (deployment: Deployment, caller: ModelsCaller) => Promise<ReportedModel[]>,
  now: () => number,
): Reported {
  const lists = new Map<string, Entry>()
  const ask = (deployment: Deployment, caller: ModelsCaller, before: Entry | undefined): Entry => {
    const entry: Entry = { known: before?.known ?? null, until: Number.POSITIVE_INFINITY }
    fetchList(deployment, caller).then(
      (models) => {
        entry.known = models
        entry.until = now() + FRESH_MS
      },
      () => {
        entry.until = now() + FAILED_MS
      },
    )
    return entry
  }
  const entryFor = (deployment: Deployment, caller: ModelsCaller): Entry => {
    const key = `${deployment.id} ${caller.facts.id ?? ''}`
    const before = lists.get(key)
    if (before && before.until > now()) return before
    const entry = ask(deployment, caller, before)
    lists.delete(key)
    lists.set(key, entry)
    const [oldest] = lists.keys()
    if (lists.size > MOST_LISTS && oldest !== undefined) lists.delete(oldest)
    return entry
  }
  return (deployment, caller, model) =>
    deployment.models && entryFor(deployment, caller).known?.find(({ id }) => id === model)
}
