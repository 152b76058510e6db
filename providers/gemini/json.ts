/** Tolerant reading of a vendor's JSON: what is missing or of another type reads as absent, never throws. */
import { isDeepStrictEqual } from 'node:util'

export type Fields = Record<string, unknown>

export const isRecord = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

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
