/** Sealed parts at rest, and the installation’s own values. */

/** Where conversations hold sealed parts. */
export type SealedPlace =
  | 'message.body'
  | 'turn.input'
  | 'turn.context'
  | 'turn.announce'
  | 'execution.result'
/**
 * For re-encryption, with Credentials.sealed: what conversations hold sealed, written back only over what was
 * read. A page is the next `limit` rows by id (`''`: the first), null in those that hold nothing sealed.
 */
export interface Sealed {
  /** Documents with sealed parts (src/credentials/sealed-parts.ts) in them, as JSON text. */
  documents(
    place: SealedPlace,
    after: string,
    limit: number,
  ): Promise<{ id: string; session_id: string; text: string | null }[]>
  putDocument(place: SealedPlace, id: string, before: string, after: string): Promise<boolean>
  /** Arguments that a person gave an approved call. */
  arguments(after: string, limit: number): Promise<{ id: string; sealed: Uint8Array | null }[]>
  putArguments(id: string, before: Uint8Array, after: Uint8Array): Promise<boolean>
}

/** Single values of the whole installation. */
export interface Settings {
  get(name: string): Promise<string | null>
  set(name: string, value: string): Promise<void>
  /** Sets it unless it is there; what it is now. */
  init(name: string, value: string): Promise<string>
}
