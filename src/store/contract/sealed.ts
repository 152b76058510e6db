/** What is sealed at rest, and the installation's own values. */

/** Where conversations hold sealed parts. */
export type SealedPlace =
  | 'message.body'
  | 'turn.input'
  | 'turn.context'
  | 'turn.announce'
  | 'execution.result'
/** A row's secret, with the version that it was read at. */
export interface SealedSecret {
  table: 'credential' | 'connector'
  id: string
  owner: string
  secret: Uint8Array
  version: number
}
/**
 * For re-encryption: all that is sealed at rest, written back only over what was read. A page is the next `limit` rows
 * by id after `after` (`''`: from the first); rows that hold nothing sealed have null in it. A page of what may be large
 * has fewer rows, but one at least, where what they hold is more than `bytes` together (PAGE_BYTES).
 */
export interface Sealed {
  /** Secrets of credentials and connectors. */
  secrets(after: string, limit: number): Promise<SealedSecret[]>
  putSecret(
    read: Pick<SealedSecret, 'table' | 'id' | 'version'>,
    secret: SealedSecret['secret'],
  ): Promise<boolean>
  /** Documents with sealed parts (src/credentials/sealed-parts.ts) in them, as JSON text. */
  documents(
    place: SealedPlace,
    after: string,
    limit: number,
    bytes?: number,
  ): Promise<{ id: string; session_id: string; text: string | null }[]>
  putDocument(place: SealedPlace, id: string, before: string, after: string): Promise<boolean>
  /** Arguments that a person gave an approved call. */
  arguments(
    after: string,
    limit: number,
    bytes?: number,
  ): Promise<{ id: string; sealed: Uint8Array | null }[]>
  putArguments(id: string, before: Uint8Array, after: Uint8Array): Promise<boolean>
}

/** Single values of the whole installation. */
export interface Settings {
  set(name: string, value: string): Promise<void>
  /** Sets the value unless there is one. Returns the present one. */
  init(name: string, value: string): Promise<string>
}
