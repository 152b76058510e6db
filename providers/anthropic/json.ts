/** Reading JSON that the vendor sent: only what is used, and nothing trusted to be there. */
import { isRecord } from '../../src/chat/json.ts'

export type Json = Record<string, unknown>

/** The object that `value` is, or an empty one. */
export const object = (value: unknown): Json => (isRecord(value) ? value : {})

export const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])

export const string = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)

export const number = (value: unknown): number | undefined => (typeof value === 'number' ? value : undefined)
