/** A proxy between a bus and its Redis that fails as networks do. */
import { connect, createServer, type Socket } from 'node:net'
import type { Test } from 'tap'
import { listening } from '../listening.ts'

/** `url` leads through the proxy, `direct` past it. */
export async function proxied(t: Test, direct: string) {
  const target = new URL(direct)
  const sockets = new Set<Socket>()
  const silent = new WeakSet<Socket>()
  let state: 'open' | 'cut' | 'frozen' = 'open'
  let isLosing = false
  let hasLost = false
  let delaying: string | null = null
  let deliver: (() => Promise<void>) | null = null
  let keeping: { from: string; until: string; begun(): void } | null = null
  const server = createServer((near) => {
    if (state === 'cut') return near.destroy()
    const far = connect(Number(target.port), target.hostname)
    let isDelayed = false
    for (const socket of [near, far]) {
      sockets.add(socket)
      socket.on('error', () => {})
      socket.on('close', () => {
        sockets.delete(socket)
        near.destroy()
        if (!isDelayed) far.destroy()
      })
    }
    let kept: Buffer | null = null
    near.on('data', (chunk) => {
      if (delaying !== null && chunk.includes(delaying)) {
        delaying = null
        isDelayed = true
        deliver = () =>
          new Promise((resolve) => {
            far.once('data', () => {
              far.destroy()
              resolve()
            })
            far.write(chunk)
          })
        near.destroy()
        return
      }
      if (state !== 'frozen' && !silent.has(near)) far.write(chunk)
    })
    far.on('data', (chunk) => {
      if (state === 'frozen' || silent.has(far)) return
      // The answer to an append of one session is an array of one; a published message is an array of three.
      if (isLosing && chunk.toString('latin1', 0, 4) === '*1\r\n') {
        isLosing = false
        hasLost = true
        near.destroy()
        return
      }
      if (keeping && (kept || chunk.includes(keeping.from))) {
        kept = Buffer.concat([kept ?? Buffer.alloc(0), chunk])
        keeping.begun()
        if (!kept.includes(keeping.until)) return
        near.write(kept)
        keeping = kept = null
        return
      }
      near.write(chunk)
    })
  })
  const drop = () => {
    for (const socket of sockets) socket.destroy()
  }
  const url = new URL(direct)
  url.port = String(await listening(t, server))
  return {
    url: url.href,
    direct,
    cut() {
      state = 'cut'
      drop()
    },
    freeze() {
      state = 'frozen'
    },
    /** The present connections carry nothing more, and no error says so; new connections work. */
    hush() {
      for (const socket of sockets) silent.add(socket)
    },
    restore(): void {
      if (state === 'frozen') drop()
      state = 'open'
    },
    loseNextAnswer() {
      isLosing = true
    },
    lost: () => hasLost,
    /** The next command with these words is still on its way when its connection breaks. */
    delayNext(words: string) {
      delaying = words
    },
    /** Resolves once Redis has dealt with the delayed command. */
    async deliverDelayed() {
      if (!deliver) throw new Error('no command was delayed')
      await deliver()
    },
    /** Holds back one connection's answers from the words `from` on; with the words `until` all go in one piece. */
    keepBack: (from: string, until: string) =>
      new Promise<void>((begun) => {
        keeping = { from, until, begun }
      }),
  }
}
