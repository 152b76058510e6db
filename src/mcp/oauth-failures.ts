/**
 * Turns the errors of a login's step into BatonErrors. Their words hold nothing that was sent; of what a stranger said,
 * only codes.
 */
import {
  IssuerMismatchError,
  OAuthClientFlowError,
  OAuthError,
  OAuthErrorCode,
  RegistrationRejectedError,
} from '@modelcontextprotocol/client'
import { parseRecord } from '../chat/json.ts'
import { BatonError } from '../errors.ts'
import { cutUtf8 } from '../text.ts'
import type { McpLoginTarget, StepContext } from './oauth.ts'
import { LimitedError, TokenlessError } from './oauth-answers.ts'

/** Codes for the login service's own trouble; the SDK uses them for a status 5xx, too. */
const PASSING: ReadonlySet<string> = new Set([
  OAuthErrorCode.ServerError,
  OAuthErrorCode.TemporarilyUnavailable,
])

/** Runs one step, and turns thrown errors into ours. */
export async function step<T>(
  target: McpLoginTarget,
  context: StepContext,
  work: () => Promise<T>,
): Promise<T> {
  try {
    const result = await work()
    if (context.refused) throw context.refused
    return result
  } catch (failure) {
    throw context.refused ?? inWords(target, failure)
  }
}

function inWords(target: McpLoginTarget, failure: unknown): BatonError {
  if (failure instanceof BatonError) return failure
  if (failure instanceof IssuerMismatchError) return rejected(target, mismatch(failure))
  if (failure instanceof OAuthError) {
    const code = errorCodeIn(failure.code) ?? 'an unknown error'
    // Its words alone: the address of a page that it may name, too, may be a megabyte long.
    return PASSING.has(failure.code)
      ? away(target, new Error(failure.message))
      : rejected(target, `it answered ${code}`)
  }
  if (failure instanceof TokenlessError) return rejected(target, 'it gave no token')
  if (failure instanceof RegistrationRejectedError) {
    // Figma's and Cal.com's services register only clients that they know.
    if (isFinal(failure)) return byHand(target, `does not let Baton register itself (${refusal(failure)})`)
    return away(target, failure)
  }
  if (failure instanceof OAuthClientFlowError) return rejected(target, failure.name)
  const words = failure instanceof Error ? failure.message : ''
  if (/dynamic client registration/.test(words)) return byHand(target, 'lets no client register itself')
  const [, resource] = FOREIGN.exec(words) ?? []
  if (resource !== undefined)
    return rejected(target, `its metadata is for another server${told(resource)} than the connector's url`)
  if (failure instanceof Error && failure.name === 'ZodError')
    return rejected(target, `what it answered is not valid${misfit(failure)}`)
  const [, lack] = INCOMPATIBLE.exec(words) ?? []
  return lack === undefined ? away(target, failure) : rejected(target, `it does not support ${lack}`)
}

/** Messages of the SDK, this one and the next */
const FOREIGN = /^Protected resource (\S+) does not match/
const INCOMPATIBLE =
  /^Incompatible auth server: does not support ((?:response type|code challenge method) \w+)$/

/** An error's code, if the text is one: no other words of a stranger. */
export const errorCodeIn = (text: unknown): string | undefined =>
  typeof text === 'string' ? /^[\w.-]{1,64}$/.exec(text)?.[0] : undefined

const isFinal = ({ status }: RegistrationRejectedError): boolean => status < 500 && status !== 429

const codeIn = ({ body }: RegistrationRejectedError) => errorCodeIn(parseRecord(body)?.error)
const refusal = (failure: RegistrationRejectedError): string =>
  [`HTTP ${failure.status}`, codeIn(failure)].filter(Boolean).join(', ')

const byHand = (target: McpLoginTarget, why: string) =>
  new BatonError(
    'not_available',
    `${target.name} ${why}. Register Baton there and give auth.client_id (and auth.client_secret) to the connector.`,
  )

/**
 * What a failure means where no metadata are: the SDK has guessed where clients register. A client made by hand helps only
 * at a service that is there, as one with the code of a refused registration is (RFC 7591 3.2.2).
 */
export function atGuess(failure: unknown, target: McpLoginTarget, address: string): unknown {
  if (!(failure instanceof RegistrationRejectedError) || !isFinal(failure)) return failure
  if (failure.status === 400 && codeIn(failure) !== undefined) return failure
  return new BatonError(
    'not_available',
    `No login service of ${target.name} was found${told(address)}. If it has one elsewhere, give its address as auth.issuer.`,
  )
}

function mismatch({ kind, expected, received }: IssuerMismatchError): string {
  // Cloudflare's did so for a while (mcp-server-cloudflare#449). RFC 9207 2.4 forbids to go on.
  if (received === undefined)
    return 'its answer does not name its issuer, though its metadata promise that it does'
  if (kind !== 'metadata') return 'its issuer is not the one expected'
  const other = told(received)
  return `the metadata of ${cutUtf8(String(expected), LONGEST)} is that of another issuer${other}; if that is right, give it as auth.issuer`
}

/** An address that a stranger named, in brackets; nothing if it is no address. */
const told = (address: string): string =>
  URL.canParse(address) ? ` (${cutUtf8(new URL(address).href, LONGEST)})` : ''

/** Bytes of an address. It is cut by copying, since a slice of megabytes holds on to all of them. */
const LONGEST = 300

/** Which member of an answer the SDK's schema refused first, in brackets. */
function misfit(failure: Error): string {
  const issues = 'issues' in failure && Array.isArray(failure.issues) ? failure.issues : []
  const path: unknown = issues[0]?.path
  const member = Array.isArray(path) ? errorCodeIn(path.join('.')) : undefined
  return member === undefined ? '' : ` (${member})`
}

/** The failure may pass. */
export const away = (target: McpLoginTarget, cause: unknown) =>
  new BatonError('upstream_overloaded', `The login service of ${target.name} cannot be used now.`, {
    cause: briefly(cause),
    retryAfter: cause instanceof LimitedError ? cause.retryAfter : undefined,
  })

/** Bytes of a cause */
const MOST_WORDS = 1_000

/** The cause, without the answer that the SDK quotes whole: a login's last failure is remembered (pauses.ts). */
function briefly(cause: unknown): unknown {
  if (!(cause instanceof Error) || cause.message.length <= MOST_WORDS) return cause
  return new Error(cutUtf8(cause.message, MOST_WORDS))
}

/** Trying again does not help. */
export const rejected = (target: McpLoginTarget, why: string) =>
  new BatonError('upstream_rejected', `The login at ${target.name} failed: ${why}.`)

/** Characters of an address that a browser is sent to: few servers take half of it. */
export const MOST_ADDRESS = 16_384
/** Characters of JSON that are kept of a login: its rows are read with each turn, and its token is one header. */
const MOST_KEPT = 131_072

/** What a login service has said, if it is short enough to be kept. Its answers may have a megabyte each. */
export function bounded<T>(target: McpLoginTarget, said: T): T {
  if (JSON.stringify(said).length > MOST_KEPT) throw rejected(target, 'what it answered is too long')
  return said
}
