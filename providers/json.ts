/**
 * Reads JSON that a vendor sent: only what is used. A value that is missing or of another type reads as absent; nothing
 * throws.
 */
import { asJson, isRecord } from '../src/chat/json.ts'

/** An object from outside; nothing is known of its fields. */
export type Json = Readonly<Record<string, unknown>>

/** The object that `value` is, or an empty one. */
export const object = (value: unknown): Json => (isRecord(value) ? value : {})

/** The list that `value` is, or an empty one. */
export const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])

/** The list's members as objects. */
export const objects = (value: unknown): Json[] => list(value).map(object)

/** A text; an empty one counts as absent. */
export const string = (value: unknown): string | undefined =>
  typeof value === 'string' && value !== '' ? value : undefined

/** A number that can be counted with. */
export const number = (value: unknown): number | undefined =>
  typeof value === 'number' && Number.isFinite(value) ? value : undefined

/** The fields that have a value. One that is undefined is left out: beside others it would stand in place of theirs. */
export const present = <T extends object>(fields: T): { [Name in keyof T]?: Exclude<T[Name], undefined> } =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as typeof fields

/**
 * A call's arguments that came as a value, as the JSON text that other vendors send. A value nested too deep to be
 * written becomes a text that is no JSON, so that the call is not run.
 */
export const argumentsJson = (value: object): string => asJson(value) ?? '…'

/** RFC 3339 has no later year; milliseconds that were taken for seconds lie far beyond. */
const END_OF_TIME = Date.UTC(9999, 11, 31)

/** Unix milliseconds as RFC 3339; undefined for a number that is no such time. */
export const instantOf = (ms: number | undefined): string | undefined =>
  ms !== undefined && ms > 0 && ms < END_OF_TIME ? new Date(ms).toISOString() : undefined
