/** The beginnings of real media, and what a service that looks at them sees. */
export const PNG = 'iVBORw0KGgo='
export const JPEG = '/9j/4AAQSkZJRgAB'
export const PDF = 'JVBERi0xLjQK'

const BEGINNINGS: readonly (readonly [base64: RegExp, type: string])[] = [
  [/^iVBORw0KGgo/, 'image/png'],
  [/^\/9j\//, 'image/jpeg'],
  [/^R0lGOD[dl]h/, 'image/gif'],
  [/^UklGR.{6}XRUJQ/, 'image/webp'],
  [/^JVBERi0/, 'application/pdf'],
]

/** Null for what is none of the media that services look into. */
export const seenAs = (base64: unknown): string | null =>
  BEGINNINGS.find(([start]) => start.test(String(base64)))?.[1] ?? null
