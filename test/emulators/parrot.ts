import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { Test } from 'tap'
import { listening } from '../listening.ts'

/** A server and token endpoint that quotes every secret that it is sent in its refusals. */
export async function startParrot(
  t: Test,
): Promise<{ url: string; heard: (IncomingHttpHeaders | string)[] }> {
  const heard: (IncomingHttpHeaders | string)[] = []
  const server = createServer(async (request, response) => {
    const { headers } = request
    const body = (await request.toArray()).join('')
    heard.push(headers, body)
    // The secrets as they were sent, form-encoded, and without the scheme before a token.
    const bare = headers.authorization?.split(' ').at(-1)
    const words = `Not ${encodeURIComponent(body)} or ${bare} with ${JSON.stringify(headers)} and ${body}`
    response.writeHead(400).end(JSON.stringify({ error: 'invalid_grant', error_description: words }))
  })
  return { url: `http://127.0.0.1:${await listening(t, server)}/mcp`, heard }
}
