/** What a person sees in the browser at the end of a login. */
import { BatonError } from '../../errors.ts'

export interface LoginPage {
  status: 200 | 400
  html: string
}
/**
 * For pages whose address holds a code: no cache keeps them, no referrer reveals their address, and they load nothing.
 */
export const PAGE_HEADERS = {
  'content-type': 'text/html; charset=utf-8',
  'cache-control': 'no-store',
  'referrer-policy': 'no-referrer',
  'content-security-policy': "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff',
}

/** The page for a login that is being finished: 200 when it is done, 400 with the reason if it fails. */
export async function pageOf(finishing: Promise<unknown>): Promise<LoginPage> {
  try {
    await finishing
    return page(200, 'You are logged in', 'This page can be closed.')
  } catch (thrown) {
    if (!(thrown instanceof BatonError)) throw thrown
    // Browsers and virus scanners open an address twice: the second page must not deny the login that the first finished.
    const isFailed = thrown.param !== 'state'
    const title = isFailed ? 'The login did not succeed' : 'No login was finished here'
    return page(400, title, thrown.message)
  }
}

const page = (status: LoginPage['status'], title: string, words: string): LoginPage => ({
  status,
  html: `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Baton: ${escaped(title)}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:36em;margin:4em auto;padding:0 1em}</style>
<h1>${escaped(title)}</h1><p>${escaped(words)}</p></html>
`,
})

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
}
const escaped = (text: string): string => text.replace(/[&<>"']/g, (character) => ENTITIES[character] ?? '')
