/** Tolerant reading of a vendor's JSON: what is missing or of another type reads as absent, never throws. */
import { isDeepStrictEqual } from 'node:util'
import { isRecord } from '../../src/chat/json.ts'

export type Fields = Record<string, unknown>

export const record = (value: unknown): Fields => (isRecord(value) ? value : {})
export const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])
export const text = (value: unknown): string | undefined =>
  typeof value === 'string' && value !== '' ? value : undefined
export const count = (value: unknown): number | undefined =>
  typeof value === 'number' && Number.isFinite(value) ? value : undefined

/** The text is this value as JSON, however it is laid out. */
export function isJsonOf(value: unknown, json: string): boolean {
  try {
    return isDeepStrictEqual(JSON.parse(json), value)
  } catch {
    return false
  }
}
