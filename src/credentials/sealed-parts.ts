/**
 * A conversation keeps what was said, secrets included: calls run with their real arguments, and signed
 * turns replay. At rest a part in which a secret is found is sealed whole; the others stay readable.
 */
import type { Part } from '../chat/message.ts'
import { once } from '../chat/once.ts'
import { Unreadable } from '../store/store.ts'
import type { Vault } from './vault.ts'

interface SealedPart {
  type: 'sealed'
  /** Base64 of the vault's bytes, bound to the session */
  sealed: string
}

/** For openStore's `codec`. `hasSecret` is asked about each part's JSON text. */
export function sealParts(vault: Pick<Vault, 'seal' | 'open'>, hasSecret: (text: string) => boolean) {
  // A turn's input is stored with the turn and as a message.
  const isSecret = once((part: Part) => hasSecret(JSON.stringify(searched(part))))
  return {
    seal: (parts: Part[], session: string): (Part | SealedPart)[] =>
      parts.map((part) => {
        if (!isSecret(part)) return part
        const sealed = vault.seal(JSON.stringify(part), session)
        return { type: 'sealed', sealed: Buffer.from(sealed).toString('base64') }
      }),
    open: (stored: unknown, session: string, lost?: (cause: unknown) => Part): Part[] =>
      // Written by `seal`, and read back only from our own store.
      (stored as (Part | SealedPart)[]).map((part) => {
        if (part.type !== 'sealed') return part
        try {
          return JSON.parse(vault.open(Buffer.from(part.sealed, 'base64'), session)) as Part
        } catch (cause) {
          if (!lost) throw cause
          return lost(cause)
        }
      }),
  }
}

/** The part without its media's data: megabytes of base64, in which a secret has no shape that anybody would find. */
const searched = (part: Part): Part =>
  part.type === 'tool_result' ? { ...part, content: part.content.map(withoutData) } : withoutData(part)

const withoutData = <P extends Part>(part: P): P => ('data' in part ? { ...part, data: '' } : part)

/** A person's edit of a call's arguments, bound to the execution. `open` throws Unreadable if its key is gone. */
export const sealArguments = (vault: Pick<Vault, 'seal' | 'open'>) => ({
  seal: (args: Record<string, unknown>, execution: string) => vault.seal(JSON.stringify(args), execution),
  open(sealed: Uint8Array, execution: string): Record<string, unknown> {
    try {
      return JSON.parse(vault.open(sealed, execution))
    } catch (cause) {
      throw new Unreadable(cause)
    }
  },
})
