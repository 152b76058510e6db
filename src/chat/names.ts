/** One exposed tool name for every provider (api.md "Names"): legal everywhere, never parsed back. */
import { sha256 } from './json.ts'

/** Exposed name of a canonical one: `server.tool` → `server__tool`; the first dot ends the server. */
export function exposedName(canonical: string): string {
  const dot = canonical.indexOf('.')
  const plain = dot < 0 ? canonical : `${canonical.slice(0, dot)}__${canonical.slice(dot + 1)}`
  const legal = plain.replace(/[^A-Za-z0-9_-]/gu, '_')
  if (legal === plain && legal !== '' && legal.length <= 63) return legal
  const cut = legal.length > 56 ? `${legal.slice(0, 28)}_${legal.slice(-27)}` : legal
  return `${cut}_${sha256(canonical).slice(0, 6)}`
}

/**
 * A call id that every vendor takes: `^[A-Za-z0-9_-]{1,64}$` (Anthropic refuses others, wire/anthropic.md 4.5; OpenAI
 * cuts at 64, wire/openai.md 4). A legal id stays; any other gets a hash, so that no two become the same.
 */
export function legalCallId(id: string): string {
  if (/^[A-Za-z0-9_-]{1,64}$/.test(id)) return id
  const hash = sha256(id).slice(0, 12)
  return `${id.replace(/[^A-Za-z0-9_-]/gu, '_').slice(0, 48)}_${hash}`
}
