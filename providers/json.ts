/** Reading JSON that a vendor sent: only what is used. What is missing or of another type reads as absent, and nothing throws. */
import { isRecord } from '../src/chat/json.ts'

/** An object from outside; of no field is anything known. */
export type Json = Readonly<Record<string, unknown>>

/** The object that `value` is, or an empty one. */
export const object = (value: unknown): Json => (isRecord(value) ? value : {})

export const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])

/** The list's members as objects. */
export const objects = (value: unknown): Json[] => list(value).map(object)

/** An empty text says as little as none. */
export const string = (value: unknown): string | undefined =>
  typeof value === 'string' && value !== '' ? value : undefined

export const number = (value: unknown): number | undefined =>
  typeof value === 'number' && Number.isFinite(value) ? value : undefined
