/**
 * What each provider reports about its models, in its list and by its refusals. It is kept for an hour, by credential;
 * a call never waits for it.
 */
import { isDeepStrictEqual } from 'node:util'
import { BoundedMap } from '../bounded-map.ts'
import type { CredentialFacts, CredentialSecret, Deployment, ReportedModel } from '../provider.ts'
import { timeLimit } from '../within.ts'
import { MAX_ANSWER } from './exchange.ts'
import type { Requests } from './requests.ts'

const FRESH_MS = 3_600_000
/** A vendor whose list fails is not asked again with every turn. */
const FAILED_MS = 60_000
/** Longest time that a list may take: while one is under way, no other is asked for. */
const LONGEST_MS = 15_000
/** Credentials come and go in a long-lived process. */
const MOST_LISTS = 500
const MOST_LEARNED = 2000

/** Who asks: there is one list for each deployment and credential. */
interface ModelsCaller {
  facts: CredentialFacts
  secret(): Promise<CredentialSecret>
  /** The operator's, as every request has them: a relay may let none in without */
  headers?: Readonly<Record<string, string>>
}
export interface ModelLists {
  /** What is known of the model now */
  known(deployment: Deployment, facts: CredentialFacts, model: string): ReportedModel | undefined
  /** Notes what is known of the model after a refusal. False: another call has learned the same before. */
  learn(deployment: Deployment, facts: CredentialFacts, model: ReportedModel): boolean
  /** Asks in the background if nothing is known, or the answer is too old. */
  ask(deployment: Deployment, caller: ModelsCaller): void
}

interface Entry {
  known: readonly ReportedModel[] | null
  until: number
}

/** One ask at a time for each deployment and credential; what it found is kept for a while, a failure for less. */
export function createModels(requests: Requests, now: () => number): ModelLists {
  const lists = new BoundedMap<Entry>(MOST_LISTS)
  const learned = new BoundedMap<{ model: ReportedModel; until: number }>(MOST_LEARNED)
  const keyOf = (deployment: Deployment, facts: CredentialFacts) => `${deployment.id} ${facts.id ?? ''}`

  function ask(deployment: Deployment, caller: ModelsCaller): void {
    const key = keyOf(deployment, caller.facts)
    const before = lists.get(key)
    const { models: list } = deployment
    if (!list || (before && before.until > now())) return
    const entry: Entry = { known: before?.known ?? null, until: Number.POSITIVE_INFINITY }
    fetchList(requests, deployment, list, caller).then(
      (models) => {
        entry.known = models
        entry.until = now() + FRESH_MS
      },
      () => {
        entry.until = now() + FAILED_MS
      },
    )
    lists.put(key, entry)
  }
  return {
    ask,
    known(deployment, facts, model) {
      const key = keyOf(deployment, facts)
      const listed = lists.get(key)?.known?.find(({ id }) => id === model)
      const told = learned.get(`${key} ${model}`)
      return told && told.until > now() ? { ...listed, ...told.model } : listed
    },
    learn(deployment, facts, model) {
      const key = `${keyOf(deployment, facts)} ${model.id}`
      const before = learned.get(key)
      const isFresh = before !== undefined && before.until > now()
      // An addition does not extend the time: vendors begin to take things, and only a request that has them can tell.
      learned.put(key, { model, until: isFresh ? before.until : now() + FRESH_MS })
      return !isFresh || !isDeepStrictEqual(before.model, model)
    },
  }
}

/** Throws for any answer that is not a list. The error is dropped: without a list the adapter's own table counts. */
async function fetchList(
  requests: Requests,
  deployment: Deployment,
  { path, headers, parse }: NonNullable<Deployment['models']>,
  { facts, secret, headers: own }: ModelsCaller,
): Promise<ReportedModel[]> {
  const exchange = requests.send(deployment, {
    secret: await secret(),
    facts,
    headers: { accept: 'application/json', ...own, ...headers },
    path,
    body: null,
    signal: timeLimit(LONGEST_MS),
  })
  const { status } = await exchange.head()
  const body = await exchange.text(MAX_ANSWER)
  if (status !== 200) throw new Error(`a list of models was answered with ${status}`)
  return parse(JSON.parse(body))
}
