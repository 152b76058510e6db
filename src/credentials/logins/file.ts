/** Reads login files of vendors' own tools. */
import { isRecord } from '../../chat/json.ts'
import { invalid } from '../../errors.ts'
import type { ImportedLogin } from '../../oauth-vendor.ts'
import type { ConfiguredVendor } from './vendors.ts'

/** A login file, given as its text or its JSON. */
export interface LoginFile {
  provider: string
  format: string
  content: unknown
  project_id?: string
}

/** Schemas of texts that can stand in an HTTP header: a secret, and a fact that is sent with it. */
export const SECRET_FORM = {
  minLength: 1,
  maxLength: 16_384,
  pattern: '^[\\x21-\\x7e]+$',
  description: 'Printable ASCII without spaces',
} as const
export const FACT_FORM = { ...SECRET_FORM, maxLength: 256 } as const

/** Throws invalid_request. */
export function readLoginFile({ vendor }: ConfiguredVendor, { format, content }: LoginFile): ImportedLogin {
  const read = vendor.imports[format]
  if (!read) {
    const known = Object.keys(vendor.imports).join(', ')
    throw invalid('format', `format must be one of ${known} for ${vendor.provider}.`)
  }
  const login = read(contentOf(content))
  assertForm(login.secret, SECRET_FORM)
  assertForm(login.facts, FACT_FORM)
  return login
}

/** Checks the form that POST /v1/credentials requires of the same fields. */
function assertForm(texts: object, { maxLength, pattern }: { maxLength: number; pattern: string }): void {
  const form = new RegExp(pattern)
  for (const [name, text] of Object.entries(texts)) {
    if (typeof text !== 'string' || (form.test(text) && text.length <= maxLength)) continue
    const words = `The file's ${name} must be printable ASCII without spaces, of at most ${maxLength} characters.`
    throw invalid('content', words)
  }
}

function contentOf(content: unknown): Record<string, unknown> {
  let value = content
  if (typeof content === 'string') {
    try {
      // Editors on Windows put a byte order mark before the text.
      value = JSON.parse(content.replace(/^\uFEFF/, ''))
    } catch {
      throw invalid('content', "content is not JSON: give the login file's text.")
    }
  }
  if (isRecord(value)) return value
  throw invalid('content', 'content must be a JSON object: a login file.')
}
