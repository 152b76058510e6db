/** Commands about keys of callers, and about the key that everything is sealed under. */
import type { NewKey } from '../auth.ts'
import type { KeyRotation } from '../credentials/key-rotation.ts'
import type { ApiKey } from '../store/store.ts'
import { isDay, LAST_INSTANT } from '../validation.ts'
import { type Command, type Given, show, TARGET, tell, UsageError } from './command.ts'

export const KEY_COMMANDS: readonly Command[] = [
  {
    name: 'keys create',
    usage: '--owner <owner> [--scope chat|admin] [--name <name>] [--expires <time>]',
    summary: 'Make a gateway key and print it, this once',
    takes: [],
    options: {
      ...TARGET,
      scope: { type: 'string' },
      name: { type: 'string' },
      expires: { type: 'string' },
    },
    async run(given) {
      const input = newKey(given)
      const { key, ...made } = await (await given.access()).createKey(input)
      if (given.flag('json')) given.io.say(JSON.stringify({ ...made, key }))
      else {
        given.io.note(`${made.id} for ${made.owner} (${made.scopes.join(', ')}). It is shown this once:`)
        given.io.say(key)
      }
      return 0
    },
  },
  {
    name: 'keys list',
    usage: '',
    summary: 'List gateway keys',
    takes: [],
    options: TARGET,
    async run(given) {
      const access = await given.access()
      show(given, await access.keys(), {
        id: ({ id }) => id,
        owner: ({ owner }) => owner,
        scopes: ({ scopes }) => scopes.join(','),
        hint: ({ hint }) => `…${hint}`,
        name: ({ name }) => name,
        'last used': ({ last_used_at }) => last_used_at,
        state: stateOf,
      })
      return 0
    },
  },
  {
    name: 'keys revoke',
    usage: '',
    summary: 'Revoke a gateway key, within a second',
    takes: ['id'],
    options: TARGET,
    async run(given) {
      const [id = ''] = given.args
      await (await given.access()).revokeKey(id)
      tell(given, { id, state: 'revoked' }, `${id} is revoked.`)
      return 0
    },
  },
  {
    name: 'keys rotate-encryption',
    usage: '',
    summary:
      'Re-encrypt every stored secret under the first key of BATON_ENCRYPTION_KEYS, while gateways serve',
    takes: [],
    options: { url: TARGET.url, key: TARGET.key, json: TARGET.json },
    async run(given) {
      const done = await (await given.access()).rotateEncryption()
      const { resealed, left, unopened } = done
      const words = [`${resealed} secrets are re-encrypted; ${adviceAfter(done)}`, ...lost(unopened)].join(
        '\n',
      )
      tell(given, done, words)
      return left > 0 || unopened.length > 0 ? 1 : 0
    },
  },
]

function adviceAfter({ left, key, others, unopened }: KeyRotation): string {
  if (left > 0) {
    return `${left} kept changing meanwhile. Does every replica have the new key first? Run it again before you take the former key away.`
  }
  const all = unopened.length > 0 ? 'all others' : 'all'
  if (others.length === 0)
    return `${all} are under ${key}, which is the only key here: there is none to take out.`
  const former = others.join(', ')
  return `${all} are under the first key, ${key}. If ${former} is to stay instead, put it first in BATON_ENCRYPTION_KEYS and run this again. Otherwise wait 15 minutes, since a login that somebody is in the middle of may still need it, then take ${former} out there.`
}

const lost = (unopened: readonly string[]): string[] =>
  unopened.length === 0
    ? []
    : [
        'These do not open and stay as they are. Put their key back after the first and run this again, or enter what they hold again:',
        ...unopened.map((one) => `  ${one}`),
      ]

function newKey(given: Given): NewKey {
  const owner = given.text('owner')
  if (owner === undefined) throw new UsageError('keys create needs --owner: whose things the key sees.')
  const scope = given.text('scope') ?? 'chat'
  if (scope !== 'chat' && scope !== 'admin') throw new UsageError('--scope must be chat or admin.')
  const name = given.text('name')
  if (name !== undefined && (name === '' || name.length > 200)) {
    throw new UsageError('--name must have 1 to 200 characters.')
  }
  const expires = given.text('expires')
  return { owner, scopes: [scope], name, expires_at: expires === undefined ? undefined : timeOf(expires) }
}

function timeOf(text: string): string {
  const [, day = ''] = /^(\d{4}-\d\d-\d\d)(T.+)?$/.exec(text) ?? []
  const time = isDay(day) ? Date.parse(text) : Number.NaN
  if (Number.isNaN(time) || time > LAST_INSTANT) {
    throw new UsageError('--expires must be a date or time, such as 2027-01-31 or 2027-01-31T12:00:00Z.')
  }
  if (time <= Date.now()) throw new UsageError('--expires is in the past.')
  return new Date(time).toISOString()
}

function stateOf({ revoked_at, expires_at }: ApiKey): string {
  if (revoked_at !== null) return 'revoked'
  if (expires_at === null) return 'active'
  return Date.parse(expires_at) <= Date.now() ? 'expired' : `until ${expires_at}`
}
