/**
 * What a medium is: by its first bytes if they tell, whatever it was declared as. Callers and servers often name
 * another type. A vendor that checks then refuses the request, and every later one of the conversation ("specified
 * using the image/png media type, but the image appears to be a image/jpeg image", vybestack/llxprt-code#2130).
 */
import { isUtf8 } from 'node:buffer'
import { isBlank, type MediaKind, type MediaPart, type TextPart } from './message.ts'
import { once } from './once.ts'

/** First bytes in hexadecimal, of the types that vendors check. */
const SIGNS: readonly (readonly [type: string, start: RegExp])[] = [
  ['image/png', /^89504e470d0a1a0a/],
  ['image/jpeg', /^ffd8ff/],
  ['image/gif', /^474946383[79]61/],
  ['image/webp', /^52494646.{8}57454250/],
  ['application/pdf', /^255044462d/],
  // `ftyp` and a brand of HEIF's. Windows knows no type for it, and apps of iPhones call it PNG or JPEG (getpaseo/paseo#700).
  ['image/heic', /^.{8}66747970(?:6865(?:6963|6978|696d|6973|7663|7678)|6d696631|6d736631)/],
]

/**
 * The part with its true type and kind; the same object if it declares them right. Null if it declares a type that can
 * be seen from the bytes, and they show otherwise.
 */
export const asItIs = once((part: MediaPart): MediaPart | null => {
  // Vendors compare whole types: `text/plain; charset=utf-8` is none of theirs.
  const [bare = ''] = part.media_type.toLowerCase().split(';', 1)
  const declared = bare.trimEnd().replace(/^image\/jpg$/, 'image/jpeg')
  const found = part.data === undefined ? declared : typeOf(part.data)
  if (found === undefined && isContradicted(declared, part.data ?? '')) return null
  const media_type = found ?? (isUnnamedText(declared, part.data ?? '') ? 'text/plain' : declared)
  const known: MediaPart = { ...part, type: mediaKind(media_type) ?? part.type, media_type }
  if (part.url !== undefined) known.url = parsedUrl(part.url)
  // Rows of earlier versions may lack their padding; else they are in the standard form.
  if (part.data !== undefined && part.data.length % 4 !== 0)
    known.data = standardBase64(part.data) ?? part.data
  if (known.data !== undefined && isPlainText(media_type))
    known.data = inUtf8(known.data, charsetOf(part.media_type))
  const fields = Object.keys(known) as (keyof MediaPart)[]
  return fields.every((field) => known[field] === part[field]) ? part : known
})

/** The URL as parsers write it: it may be given with spaces around it, `HTTPS:` or half a character in it. */
const parsedUrl = (url: string): string => (URL.canParse(url) ? new URL(url).href : url)

/**
 * Base64 in the form that every vendor takes: standard alphabet, padded, one line. Null for a text that is not base64.
 */
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

/** Excel's charset for CSV on a Western Windows, whatever it calls the file (dust-tt/dust#27143, open-webui/open-webui#25172) */
const WINDOWS = 'windows-1252'

/** The charset of a text that is no UTF-8: the one that its type names, if any is known by that name. */
function charsetOf(media_type: string): string {
  const [, label = WINDOWS] = /;\s*charset="?([\w:.-]+)/i.exec(media_type) ?? []
  try {
    const { encoding } = new TextDecoder(label)
    return encoding === 'utf-8' ? WINDOWS : encoding
  } catch {
    return WINDOWS
  }
}

/**
 * A text in UTF-8, which is all that models read: from UTF-16 if its byte order mark says so, as Notepad, Excel and `>` of
 * PowerShell write (dust-tt/dust#27043, MoonshotAI/kimi-code#2647); read as UTF-8 it is full of NULs. Else from the given
 * charset, if it is not UTF-8, even with some faults. A text with bytes that no text has, or with nothing but the mark,
 * stays as it is.
 */
function inUtf8(base64: string, charset?: string): string {
  const marked = { fffe: 'utf-16le', feff: 'utf-16be' }[bytesAt(base64, 0, 2).toString('hex')]
  if (marked === undefined && (charset === undefined || hasControls(base64))) return base64
  const bytes = Buffer.from(base64, 'base64')
  if (marked === undefined && isUtf8(bytes)) return base64
  const decoder = new TextDecoder(marked ?? (isFaultyUtf8(bytes) ? 'utf-8' : charset))
  // `stream`: without it Node 20 and 22 read windows-1252 as Latin-1, without its € and quotation marks (nodejs/node#56542).
  const words = decoder.decode(bytes, { stream: true }) + decoder.decode()
  return Buffer.from(words).toString('base64') || base64
}

/** Such as a text that was cut amid a character, or a log with a stray byte; in older charsets few letters look like UTF-8. */
function isFaultyUtf8(bytes: Buffer): boolean {
  let balance = 0
  for (const char of bytes.toString('utf8')) if (char > '\x7f') balance += char === '\ufffd' ? -1 : 1
  return balance > 0
}

const isStandard = (text: string) => text.length % 4 === 0 && text !== '' && isBase64(text)

/** Characters of base64, and its padding. One pattern for both takes five times as long. */
export function isBase64(text: string): boolean {
  const end = text.search(/[^A-Za-z0-9+/]/)
  return end < 0 || /^={1,2}$/.test(text.slice(end))
}

function typeOf(base64: string): string | undefined {
  const start = bytesAt(base64, 0, 16).toString('hex')
  return SIGNS.find(([, sign]) => sign.test(start))?.[0]
}

/**
 * Whether the bytes contradict the declared type. Readers look for a PDF's first line in its first 1024 bytes:
 * something may precede it.
 */
function isContradicted(declared: string, base64: string): boolean {
  if (!SIGNS.some(([type]) => type === declared)) return false
  return declared !== 'application/pdf' || !Buffer.from(base64.slice(0, 1368), 'base64').includes('%PDF-')
}

/** Characters of base64 in which a file that is no text shows it. */
const HEAD = 4096

/**
 * Whether the bytes are a text, though the type does not say so. Browsers ask the system for a file's type: YAML, TOML, SQL
 * and scripts are `application/…` with a name of each system's own, or have none (`application/octet-stream`); TypeScript
 * is a video (`video/mp2t`), and CSV a file of Excel's (binaricat/Netcatty#1289, TencentCloud/Octop#409). SVG is an image
 * that no vendor takes as one. RTF and mail are texts that some vendors read as documents.
 */
function isUnnamedText(declared: string, base64: string): boolean {
  if (isPlainText(declared) || /^(image\/(?!svg)|audio\/|message\/)|\/(pdf|rtf)$/.test(declared)) return false
  const text = inUtf8(base64, declared === 'application/vnd.ms-excel' ? WINDOWS : undefined)
  return text !== '' && !hasControls(text) && isUtf8(Buffer.from(text, 'base64'))
}

const hasControls = (base64: string): boolean => Buffer.from(base64.slice(0, HEAD), 'base64').some(isControl)

/** A byte that no text has; there are tabs, ends of lines and pages, and the colours of terminals in texts. */
const isControl = (byte: number): boolean => byte < 0x20 && !(byte >= 0x09 && byte <= 0x0d) && byte !== 0x1b

/** Pixels of an image's longer side, as its first bytes tell; 0 if they do not. */
export function longerSide(base64: string): number {
  const sides = SIDES[typeOf(base64) ?? '']?.(base64) ?? []
  return Math.max(0, ...sides)
}

const SIDES: Readonly<Record<string, (base64: string) => number[]>> = {
  'image/png'(base64) {
    const size = bytesAt(base64, 16, 8)
    return [size.readUInt32BE(0), size.readUInt32BE(4)]
  },
  'image/gif'(base64) {
    const size = bytesAt(base64, 6, 4)
    return [size.readUInt16LE(0), size.readUInt16LE(2)]
  },
  'image/webp': webpSides,
  'image/jpeg': jpegSides,
}

function webpSides(base64: string): number[] {
  const chunk = bytesAt(base64, 12, 18)
  switch (chunk.toString('latin1', 0, 4)) {
    case 'VP8 ':
      return [chunk.readUInt16LE(14) & 0x3fff, chunk.readUInt16LE(16) & 0x3fff]
    case 'VP8L': {
      const bits = chunk.readUInt32LE(9)
      return [1 + (bits & 0x3fff), 1 + ((bits >>> 14) & 0x3fff)]
    }
    case 'VP8X':
      return [1 + chunk.readUIntLE(12, 3), 1 + chunk.readUIntLE(15, 3)]
    default:
      return []
  }
}

/** Bytes of a JPEG that are decoded at once */
const WINDOW = 4096

/**
 * The size is in the frame's header, behind segments of up to 64 KiB each: the camera's data, colours, a thumbnail. Many
 * short ones are read from one window: a file may consist of them, and a body of thousands of such files.
 */
function jpegSides(base64: string): number[] {
  let start = 0
  let window = bytesAt(base64, start, WINDOW)
  for (let at = 2, segments = 0; segments < 1000; segments++) {
    if (at + 9 > start + WINDOW) {
      start = at
      window = bytesAt(base64, start, WINDOW)
    }
    const here = at - start
    const marker = window.readUInt16BE(here)
    if (marker < 0xff00) return []
    const isFrame = marker >= 0xffc0 && marker <= 0xffcf && ![0xffc4, 0xffc8, 0xffcc].includes(marker)
    if (isFrame) return [window.readUInt16BE(here + 5), window.readUInt16BE(here + 7)]
    // Any number of 0xff may precede a marker.
    at += marker === 0xffff ? 1 : 2 + window.readUInt16BE(here + 2)
  }
  return []
}

/** `length` bytes from `at` on, without decoding those before; zeros past the end. */
function bytesAt(base64: string, at: number, length: number): Buffer {
  const start = Math.floor(at / 3) * 4
  const bytes = Buffer.alloc(length)
  const decoded = Buffer.from(base64.slice(start, start + length * 2 + 8), 'base64')
  decoded.subarray(at % 3).copy(bytes)
  return bytes
}

/** Undefined if the type may be of any kind. */
export function mediaKind(media_type: string): MediaKind | undefined {
  if (media_type.startsWith('image/')) return 'image'
  if (media_type.startsWith('audio/')) return 'audio'
  return media_type === 'application/pdf' || media_type.startsWith('text/') ? 'file' : undefined
}

/** A type whose bytes are a text to read. */
export const isPlainText = (media_type: string): boolean =>
  media_type.startsWith('text/') || /^application\/(.+\+)?(json|xml)$/.test(media_type)

/**
 * A text file as a text part, for a target that takes no files; null for any other medium, and for a file without a
 * word.
 */
export const fileAsText = once(({ media_type, data, name = 'file' }: MediaPart): TextPart | null => {
  if (data === undefined || !isPlainText(media_type)) return null
  const bytes = Buffer.from(data, 'base64')
  const words = isUtf8(bytes) ? bytes.toString('utf8') : ''
  return isBlank(words) ? null : { type: 'text', text: `[${name}]\n${words}` }
})

/** The text in place of a medium that the target is not shown. */
export const mediaAsText = (part: MediaPart): string => {
  const where = part.url ? `, ${part.url}` : ''
  return `[${part.type}${part.name ? ` ${part.name}` : ''}, ${part.media_type}${where}: not shown to this model]`
}
