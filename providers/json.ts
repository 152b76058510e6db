/**
 * Reads JSON that a vendor sent: only what is used. A value that is missing or of another type reads as absent; nothing
 * throws.
 */
import { asJson, isRecord } from '../src/chat/json.ts'

/** An object from outside; nothing is known about its fields. */
export type Json = Readonly<Record<string, unknown>>

/** `value` if it is an object, else an empty one. */
export const object = (value: unknown): Json => (isRecord(value) ? value : {})

/** `value` if it is a list, else an empty one. */
export const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])

/** The list's members as objects. */
export const objects = (value: unknown): Json[] => list(value).map(object)

/** A text; an empty one counts as absent. */
export const string = (value: unknown): string | undefined =>
  typeof value === 'string' && value !== '' ? value : undefined

/** A finite number. */
export const number = (value: unknown): number | undefined =>
  typeof value === 'number' && Number.isFinite(value) ? value : undefined

/**
 * The fields that have a value. Undefined ones are left out, since spread over other fields they would replace theirs.
 */
export const present = <T extends object>(fields: T): { [Name in keyof T]?: Exclude<T[Name], undefined> } =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as typeof fields

/**
 * A call's arguments that came as a value, as the JSON text that other vendors send. A value nested too deep to be
 * written becomes a text that is not JSON, so that the call is not run.
 */
export const argumentsJson = (value: unknown): string => asJson(value) ?? '…'

/** RFC 3339 has no later year; milliseconds mistaken for seconds lie far beyond. */
const END_OF_TIME = Date.UTC(9999, 11, 31)

/** Unix milliseconds as RFC 3339; undefined if that is no valid time. */
export const instantOf = (ms: number | undefined): string | undefined =>
  ms !== undefined && ms > 0 && ms < END_OF_TIME ? new Date(ms).toISOString() : undefined
