/** The output of `npm test` and `npx tap`: a line for each file, failures in full, what was skipped, and the totals. */
import { Transform } from 'node:stream'
import { Parser } from 'tap-parser'

export default class Summary extends Transform {
  #parser = new Parser()
  #counts = { passed: 0, failed: 0, skipped: 0 }
  #bailout = ''
  constructor() {
    super({ decodeStrings: false })
    this.#watch(this.#parser, [])
    this.#parser.on('bailout', (reason) => {
      this.#bailout = String(reason || 'bailout')
    })
  }

  // Leaf assertions are counted; a subtest's own line is not, except when it fails with no
  // failing leaf (a crash, a time-out, a bad plan).
  #watch(parser, path) {
    let lastChild = null
    let failedBefore = 0
    parser.on('child', (child) => {
      lastChild = child
      failedBefore = this.#counts.failed
      this.#watch(child, [...path, child.name])
    })
    parser.on('assert', (result) => {
      const child = lastChild?.name === result.name ? lastChild : null
      if (child) lastChild = null
      const took = result.time ? ` (${Math.round(result.time)} ms)` : ''
      if (path.length === 0) this.push(`${result.ok ? 'ok    ' : 'FAILED'} ${result.name}${took}\n`)
      if (child && (result.ok || this.#counts.failed > failedBefore)) return
      if (result.skip || result.todo) {
        this.#counts.skipped++
        this.push(`  - ${[...path, result.name].join(' > ')}: ${result.skip || result.todo}\n`)
      } else if (result.ok) this.#counts.passed++
      else this.#failed([...path, result.name], result.diag ?? {})
    })
  }

  #failed(path, diagnosis) {
    this.#counts.failed++
    const details = JSON.stringify(diagnosis, null, 2).replace(/^/gm, '      ')
    this.push(`  x ${path.join(' > ')}\n${details}\n`)
  }

  /** At least one assertion ran, and none failed. */
  isSound() {
    return this.#counts.failed === 0 && this.#counts.passed > 0
  }

  _transform(chunk, _encoding, done) {
    this.#parser.write(chunk)
    done()
  }
  _flush(done) {
    this.#parser.end()
    if (this.#bailout) {
      this.push(`Bail out! ${this.#bailout}\n`)
      this.#counts.failed++
    }
    const { passed, failed, skipped } = this.#counts
    this.push(`\n${passed} passed, ${failed} failed, ${skipped} skipped\n`)
    done()
  }
}
