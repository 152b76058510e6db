/**
 * What people bring back from a login page: the whole address that the browser ended at, `code#state`,
 * `code=…&state=…`, or the bare code.
 */
export function readPasted(text: string): URLSearchParams {
  const pasted = text.trim().replace(/^["'<]+|["'>]+$/g, '')
  if (/^https?:\/\//i.test(pasted)) {
    if (!URL.canParse(pasted)) return new URLSearchParams()
    const { searchParams, hash } = new URL(pasted)
    // Some pages put their answer behind the hash.
    const behind = new URLSearchParams(hash.slice(1))
    return !searchParams.has('code') && behind.has('code') ? behind : searchParams
  }
  if (/^[?#]?(code|error|state)=/.test(pasted)) return new URLSearchParams(pasted.replace(/^[?#]/, ''))
  const [code = '', state] = pasted.split('#', 2)
  return new URLSearchParams({ ...(code === '' ? {} : { code }), ...(state ? { state } : {}) })
}
