/**
 * From a Google login to a Code Assist project: loadCodeAssist, and onboarding if the account has none yet
 * (wire/gemini.md 2). A generator yields the calls and receives their answers.
 */
import { isRecord, parseRecord } from '../../src/chat/json.ts'
import { BatonError, invalid } from '../../src/errors.ts'
import type { OAuthAnswer, OAuthSettings, SetupStep } from '../../src/oauth-vendor.ts'
import { type Json, object, objects, present, string } from '../json.ts'
import { classify } from './classify.ts'

type Facts = Readonly<Record<string, string>>

/** Code Assist wants a project in each request. */
export const isSetupNeeded = ({ path, project_id }: Facts): boolean =>
  path === 'code_assist' && project_id === undefined

/** Unspecified: Baton is none of the programs that these enums can name. */
const CLIENT = {
  ideType: 'IDE_UNSPECIFIED',
  platform: 'PLATFORM_UNSPECIFIED',
  pluginType: 'PLUGIN_UNSPECIFIED',
}
const POLL_MS = 5000
/** Two minutes; the vendor's own client waits without end (2.3). */
const MOST_POLLS = 24

/** The project that requests must name, as `{project_id}`; `{}` if the login is for the public API. */
export function* setUpCodeAssist(
  { baseUrl }: OAuthSettings,
  token: string,
  facts: Facts,
): Generator<SetupStep, Record<string, string>, OAuthAnswer> {
  if (facts.path === 'public') return {}
  const wanted = facts.project_id
  if (wanted !== undefined && /^\d+$/.test(wanted)) {
    throw invalid('project_id', `project_id ${wanted} is a project's number; give its id.`)
  }
  const headers = { authorization: `Bearer ${token}` }
  const post = (method: string, json: Json): SetupStep => ({
    call: { method: 'POST', url: `${baseUrl}:${method}`, headers, json },
    afterMs: 0,
  })
  const account = readAccount(yield post('loadCodeAssist', about(wanted)))
  if (account.isMember) return { project_id: account.project ?? wanted ?? refuse(account.ineligible) }
  // Google's free tier brings a project of its own and refuses any other (2.3).
  const asked = account.tier === 'free-tier' ? undefined : wanted
  let operation = readOperation(yield post('onboardUser', { tierId: account.tier, ...about(asked) }))
  // An operation without a name cannot be polled: this answer is all there is.
  const { name } = operation
  for (let polls = 0; !operation.isDone && name !== undefined; polls++) {
    if (polls === MOST_POLLS) {
      throw new BatonError('upstream_timeout', 'Google did not finish setting up Code Assist; try again.')
    }
    const url = `${baseUrl}/${name}`
    const answer = yield { call: { method: 'GET', url, headers }, afterMs: POLL_MS }
    // A failure of Google's server says nothing about the operation; the next poll may.
    if (answer.status < 500) operation = readOperation(answer)
  }
  // The backend may choose another project than the one asked for; its own is the one that works (2.3).
  return { project_id: operation.project ?? wanted ?? refuse(account.ineligible) }
}

const about = (project: string | undefined): Json => ({
  ...present({ cloudaicompanionProject: project }),
  metadata: { ...CLIENT, ...present({ duetProject: project }) },
})

interface Account {
  /** The account has a tier already */
  isMember: boolean
  project: string | undefined
  /** The tier to onboard with */
  tier: string
  ineligible: Json[]
}

/** Throws if the vendor refuses the account, or wants it verified first (2.2). */
function readAccount(answer: OAuthAnswer): Account {
  if (answer.status >= 400) {
    const failed = classify(answer)
    // VPC Service Controls hide the tier; it is the paid one (2.2).
    if (!JSON.stringify(failed.details ?? {}).includes('SECURITY_POLICY_VIOLATED')) throw failed
    return { isMember: true, project: undefined, tier: 'standard-tier', ineligible: [] }
  }
  const body = object(parseRecord(answer.body))
  const ineligible = objects(body.ineligibleTiers).slice(0, 10)
  const isMember = isRecord(body.currentTier)
  if (!isMember) {
    for (const tier of ineligible) {
      if (tier.reasonCode === 'UNSUPPORTED_CLIENT') throw retired(tier)
      if (tier.reasonCode === 'VALIDATION_REQUIRED' && string(tier.validationUrl)) throw unverified(tier)
    }
  }
  const tiers = objects(body.allowedTiers)
  return {
    isMember,
    project: projectOf(body.cloudaicompanionProject),
    tier: string(tiers.find(({ isDefault }) => isDefault === true)?.id) ?? 'legacy-tier',
    ineligible,
  }
}

const projectOf = (value: unknown): string | undefined => string(value) ?? string(object(value).id)

function readOperation(answer: OAuthAnswer): {
  isDone: boolean
  name: string | undefined
  project: string | undefined
} {
  const { done, name, response, error } = object(parseRecord(answer.body))
  if (answer.status >= 400 || error !== undefined) throw classify(answer)
  return {
    isDone: done === true,
    name: string(name),
    project: projectOf(object(response).cloudaicompanionProject),
  }
}

/** The tier's message, cut: the vendor does not limit it. */
const said = (tier: Json): string => (string(tier.reasonMessage) ?? '').slice(0, 1000)

const upstream = (tier: Json): Record<string, unknown> => ({
  reason: tier.reasonCode,
  message: said(tier),
})

/** Terminal: no retry, no other client, no disguise (0.4). */
const retired = (tier: Json) =>
  new BatonError(
    'upstream_auth',
    `Google does not serve this account through Code Assist with this client. Use a Gemini API key instead. It said: ${said(tier) || 'UNSUPPORTED_CLIENT'}`,
    { details: { upstream: upstream(tier) } },
  )

const unverified = (tier: Json) =>
  new BatonError(
    'upstream_auth',
    `Google wants the account to be verified first: open ${tier.validationUrl} and log in again.`,
    {
      details: {
        upstream: {
          ...upstream(tier),
          links: [
            { text: string(tier.validationUrlLinkText) ?? 'Verify the account', url: tier.validationUrl },
          ],
        },
      },
    },
  )

function refuse(ineligible: readonly Json[]): never {
  const reasons = ineligible.map(said).filter((words) => words !== '')
  if (ineligible.length > 0) {
    throw new BatonError(
      'upstream_auth',
      `The Google account cannot use Code Assist. It said: ${reasons.join(' ')}`,
      { details: { upstream: ineligible.map(upstream) } },
    )
  }
  const words = 'This Google account needs a Google Cloud project: give the id of one as project_id.'
  throw invalid('project_id', words)
}
