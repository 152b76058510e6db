/**
 * What a medium is: by its first bytes where they tell, whatever it was declared as. Callers and servers name another
 * type often enough, and a vendor that looks refuses it then, with the request and every later one of the conversation
 * ("specified using the image/png media type, but the image appears to be a image/jpeg image", vybestack/llxprt-code#2130).
 */
import type { MediaKind, MediaPart } from './message.ts'

/** First bytes in hexadecimal, of the types that vendors look into. */
const SIGNS: readonly (readonly [type: string, start: RegExp])[] = [
  ['image/png', /^89504e470d0a1a0a/],
  ['image/jpeg', /^ffd8ff/],
  ['image/gif', /^474946383[79]61/],
  ['image/webp', /^52494646.{8}57454250/],
  ['application/pdf', /^255044462d/],
]

/**
 * The part with the type and kind that it is of; the very part where it says so itself. Null where it is declared as
 * a type that its bytes would show, and they do not.
 */
export function asItIs(part: MediaPart): MediaPart | null {
  const declared = part.media_type.toLowerCase().replace(/^image\/jpg$/, 'image/jpeg')
  const found = part.data === undefined ? declared : typeOf(part.data)
  if (found === undefined && isDenied(declared, part.data ?? '')) return null
  const media_type = found ?? declared
  const known: MediaPart = { ...part, type: kindOf(media_type) ?? part.type, media_type }
  if (part.url !== undefined) known.url = parsedUrl(part.url)
  // Rows of before may lack their padding, and nothing else.
  if (part.data !== undefined && part.data.length % 4 !== 0)
    known.data = standardBase64(part.data) ?? part.data
  const fields = Object.keys(known) as (keyof MediaPart)[]
  return fields.every((field) => known[field] === part[field]) ? part : known
}

/** As parsers write it: a URL may be given with blanks around it, `HTTPS:` or half a character in it. */
const parsedUrl = (url: string): string => (URL.canParse(url) ? new URL(url).href : url)

/** In the form that every vendor takes: standard alphabet, padded, one line. Null for what is no base64. */
export function standardBase64(text: string): string | null {
  if (isStandard(text)) return text
  const bare = text
    .replace(/\s+/g, '')
    .replace(/={1,2}$/, '')
    .replaceAll('-', '+')
    .replaceAll('_', '/')
  const base64 = bare.padEnd(Math.ceil(bare.length / 4) * 4, '=')
  return isStandard(base64) ? base64 : null
}

const isStandard = (text: string) => text.length % 4 === 0 && /^[A-Za-z0-9+/]+={0,2}$/.test(text)

function typeOf(base64: string): string | undefined {
  const start = Buffer.from(base64.slice(0, 24), 'base64').toString('hex')
  return SIGNS.find(([, sign]) => sign.test(start))?.[0]
}

/** Readers look for a PDF's first line in its first 1024 bytes: something may stand before it. */
function isDenied(declared: string, base64: string): boolean {
  if (!SIGNS.some(([type]) => type === declared)) return false
  return declared !== 'application/pdf' || !Buffer.from(base64.slice(0, 1368), 'base64').includes('%PDF-')
}

/** Undefined where the type may be of any kind. */
function kindOf(media_type: string): MediaKind | undefined {
  if (media_type.startsWith('image/')) return 'image'
  if (media_type.startsWith('audio/')) return 'audio'
  return media_type === 'application/pdf' || media_type.startsWith('text/') ? 'file' : undefined
}

/** What stands in for a medium that the target is not shown. */
export const mediaAsText = (part: MediaPart): string => {
  const where = part.url ? `, ${part.url}` : ''
  return `[${part.type}${part.name ? ` ${part.name}` : ''}, ${part.media_type}${where}: not shown to this model]`
}
