import { Transform } from 'node:stream'
import { Parser } from 'tap-parser'

export default class Summary extends Transform {
  #parser = new Parser()
  #n = { pass: 0, fail: 0, skip: 0 }
  #bail = ''
  constructor() {
    super({ decodeStrings: false })
    this.#watch(this.#parser, [])
    this.#parser.on('bailout', (reason) => {
      this.#bail = String(reason || 'bailout')
    })
  }

  // Leaf assertions are counted; a subtest's own line is not, except when it fails with no
  // failing leaf (a crash, a time-out, a bad plan).
  #watch(p, path) {
    let lastChild = null
    p.on('child', (c) => {
      lastChild = { name: c.name, failed: 0, n: 0, parser: c }
      this.#watch(c, [...path, c.name])
    })
    p.on('assert', (r) => {
      const own = lastChild !== null && r.name === lastChild.name
      const child = own ? lastChild : null
      if (own) lastChild = null
      const dur = r.time ? ` (${Math.round(r.time)} ms)` : ''
      if (path.length === 0) this.push(`${r.ok ? 'ok    ' : 'FAILED'} ${r.name}${dur}\n`)
      if (child && (r.ok || child.parser.fail > 0)) return
      if (r.skip || r.todo) this.#n.skip++
      else if (r.ok) {
        if (!child) this.#n.pass++
      } else {
        this.#n.fail++
        this.push(
          `  x ${[...path, r.name].join(' > ')}\n${JSON.stringify(r.diag ?? {}, null, 2).replace(/^/gm, '      ')}\n`,
        )
      }
    })
  }

  _transform(chunk, _enc, cb) {
    this.#parser.write(chunk)
    cb()
  }
  _flush(cb) {
    this.#parser.end()
    if (this.#bail) {
      this.push(`Bail out! ${this.#bail}\n`)
      this.#n.fail++
    }
    const { pass, fail, skip } = this.#n
    this.push(`\n${pass} passed, ${fail} failed, ${skip} skipped\n`)
    cb()
  }
}
