/** Beginnings of media files, and what a service that looks at them finds. */
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

/**
 * The media type of a file by its beginning. Null for other data, and for a PNG without a pixel, which no service can
 * read.
 */
export const seenAs = (base64: unknown): string | null =>
  base64 === DAMAGED ? null : (BEGINNINGS.find(([start]) => start.test(String(base64)))?.[1] ?? null)

/** The beginning of a PNG file with these sides. */
export function pngOf(width: number, height: number): string {
  const header = Buffer.alloc(25)
  header.write('\0\0\0\rIHDR', 'latin1')
  header.writeUInt32BE(width, 8)
  header.writeUInt32BE(height, 12)
  return Buffer.concat([Buffer.from(PNG, 'base64'), header]).toString('base64')
}

/** A PNG by its first bytes, which no service can read. */
export const DAMAGED = pngOf(0, 0)

/** Whether an address leads nowhere (RFC 2606): services fetch the media that they are to look at. */
export const isDead = (url: unknown): boolean => /^https?:\/\/[\w.-]+\.invalid\//.test(String(url))

/** Pixels of a PNG's longer side; 0 for other data. */
export function pngSide(base64: unknown): number {
  const start = Buffer.from(String(base64).slice(0, 44), 'base64')
  if (seenAs(base64) !== 'image/png' || start.length < 24) return 0
  return Math.max(start.readUInt32BE(16), start.readUInt32BE(20))
}

/** The beginning of a PDF file with this number of pages. */
export const pdfOf = (pages: number): string =>
  Buffer.from(`${Buffer.from(PDF, 'base64')}${'<</Type/Page>>\n'.repeat(pages)}`).toString('base64')

/** Pages of a PDF; 0 for other data. */
export const pdfPages = (base64: unknown): number =>
  seenAs(base64) === 'application/pdf'
    ? Buffer.from(String(base64), 'base64').toString('latin1').split('<</Type/Page>>').length - 1
    : 0
