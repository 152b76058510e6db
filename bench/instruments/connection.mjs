/**
 * A keep-alive connection to a gateway on loopback. Raw sockets and an HTTP/1.1 reader of its own, so that the cost of an
 * event here stays far below any gateway's. What an answer holds is not parsed, whatever its event format is: counted are
 * the upstream's stamps, `~` and 16 digits and `~` (when it wrote the delta), or the occurrences of a text.
 */
import { connect } from 'node:net'
import { nowUs } from './measure.mjs'

/** One request at a time. */
export class Connection {
  #address
  #socket = null
  /** The request under way: its answer so far, and how to end it */
  #current = null

  constructor(base) {
    const { hostname, port } = new URL(base)
    this.#address = { host: hostname, port: Number(port), noDelay: true }
  }

  /**
   * `wanted`: `expect` so many stamps, their ages go to `transit`; or a `needle` to count. `onFirst` is called at the first.
   * Resolves whatever happens, with `error` null for an answer that was 200 and as long as expected; rejects where
   * nobody listens.
   */
  async run(request, wanted) {
    if (!this.#socket || this.#socket.destroyed) await this.#open()
    return new Promise((resolve) => {
      const count = wanted.needle ? new Needles(wanted) : new Stamps(wanted)
      const timer = setTimeout(() => {
        current.error = 'timeout'
        this.#socket?.destroy()
      }, wanted.timeoutMs ?? 60_000)
      const current = {
        answer: new Answer(count),
        count,
        wanted,
        timer,
        resolve,
        error: null,
        began: nowUs(),
      }
      this.#current = current
      this.#socket.write(request)
    })
  }

  destroy() {
    this.#socket?.destroy()
    this.#socket = null
  }

  #open() {
    return new Promise((resolve, reject) => {
      const socket = connect(this.#address)
      socket.once('connect', () => {
        socket.off('error', reject)
        socket.on('error', () => {})
        resolve()
      })
      socket.once('error', reject)
      socket.on('data', (bytes) => this.#take(bytes))
      socket.on('close', () => {
        if (this.#socket && this.#socket !== socket) return
        this.#socket = null
        const { answer, error } = this.#current ?? {}
        this.#finish(error ?? (answer?.length === null ? null : 'closed'))
      })
      this.#socket = socket
    })
  }

  #take(bytes) {
    const answer = this.#current?.answer
    if (!answer?.take(bytes, nowUs())) return
    if (answer.isLast) this.destroy()
    this.#finish(null)
  }

  #finish(failure) {
    if (!this.#current) return
    const { answer, count, wanted, timer, resolve, began } = this.#current
    this.#current = null
    clearTimeout(timer)
    const { seen, firstAt } = count
    const { status } = answer
    const isShort = wanted.expect && seen !== wanted.expect
    const misfit = status !== 200 ? `status${status}` : isShort ? `short(${seen}/${wanted.expect})` : null
    resolve({ error: failure ?? misfit, ttft: firstAt - began, total: nowUs() - began, count: seen, status })
  }
}

/** An HTTP/1.1 answer as it comes in. */
class Answer {
  status = 0
  /** The connection ends with this answer */
  isLast = false
  /** Bytes that are left of the body; null: to the connection's end */
  length = 0
  #count
  #head = Buffer.alloc(0)
  #chunks = null

  constructor(count) {
    this.#count = count
  }

  /** True with the answer's end. */
  take(bytes, at) {
    const body = this.#head ? this.#readHead(bytes) : bytes
    if (!body) return false
    if (this.#chunks) return this.#chunks.take(body, at)
    this.#count.take(body, at)
    if (this.length === null) return false
    this.length -= body.length
    return this.length <= 0
  }

  /** The bytes that follow the head; null: the head is not whole yet. */
  #readHead(bytes) {
    const read = Buffer.concat([this.#head, bytes])
    const end = read.indexOf('\r\n\r\n')
    this.#head = read
    if (end < 0) return null
    const head = read.toString('latin1', 0, end).toLowerCase()
    const rest = read.subarray(end + 4)
    this.status = Number(head.slice(9, 12))
    if (this.status === 100) {
      this.#head = Buffer.alloc(0)
      return this.#readHead(rest)
    }
    this.#head = null
    this.isLast = /\r\nconnection:\s*close/.test(head)
    const length = /\r\ncontent-length:\s*(\d+)/.exec(head)
    if (/\r\ntransfer-encoding:[^\r]*chunked/.test(head)) this.#chunks = new Chunks(this.#count)
    else this.length = length ? Number(length[1]) : null
    return rest
  }
}

/** A chunked body, its framing taken away. */
class Chunks {
  #count
  /** The next line: `size` of a chunk, `gap` behind one, `trailer` behind the last */
  #next = 'size'
  #line = ''
  #left = 0

  constructor(count) {
    this.#count = count
  }

  /** True with the body's end. */
  take(bytes, at) {
    let from = 0
    while (from < bytes.length) {
      if (this.#left > 0) {
        const to = Math.min(from + this.#left, bytes.length)
        this.#count.take(bytes.subarray(from, to), at)
        this.#left -= to - from
        from = to
        continue
      }
      const end = bytes.indexOf(NEWLINE, from)
      this.#line += bytes.toString('latin1', from, end < 0 ? bytes.length : end)
      if (end < 0) return false
      from = end + 1
      if (this.#endLine()) return true
    }
    return false
  }

  #endLine() {
    const line = this.#line.trimEnd()
    this.#line = ''
    if (this.#next === 'trailer') return line === ''
    if (this.#next === 'gap') this.#next = 'size'
    else {
      this.#left = Number.parseInt(line, 16)
      this.#next = this.#left === 0 ? 'trailer' : 'gap'
    }
    return false
  }
}

const NEWLINE = 10
const TILDE = 126
const DIGIT_0 = 48
const DIGITS = 16

/** Counts texts that the end of a read may cut. */
class Counter {
  seen = 0
  firstAt = 0
  wanted
  #rest = null

  constructor(wanted) {
    this.wanted = wanted
  }

  take(bytes, at) {
    const whole = this.#rest ? Buffer.concat([this.#rest, bytes]) : bytes
    const done = this.scan(whole, at)
    this.#rest = done < whole.length ? Buffer.from(whole.subarray(done)) : null
  }

  note(at) {
    if (this.seen++ > 0) return
    this.firstAt = at
    this.wanted.onFirst?.()
  }
}

class Needles extends Counter {
  /** How far the bytes are counted. */
  scan(bytes, at) {
    const { needle } = this.wanted
    let done = 0
    for (let found = bytes.indexOf(needle); found >= 0; found = bytes.indexOf(needle, done)) {
      this.note(at)
      done = found + needle.length
    }
    return Math.max(done, bytes.length - needle.length + 1)
  }
}

class Stamps extends Counter {
  scan(bytes, at) {
    const { expect, transit } = this.wanted
    let from = bytes.indexOf(TILDE)
    while (from >= 0) {
      const end = from + DIGITS + 1
      if (end >= bytes.length) return from
      if (bytes[end] !== TILDE) {
        from = bytes.indexOf(TILDE, from + 1)
        continue
      }
      // An aggregate at the end repeats the text: its stamps are no deltas.
      if (this.seen >= expect) return bytes.length
      let written = 0
      for (let i = from + 1; i < end; i++) written = written * 10 + (bytes[i] - DIGIT_0)
      this.note(at)
      transit?.push(at - written)
      from = bytes.indexOf(TILDE, end + 1)
    }
    return bytes.length
  }
}
