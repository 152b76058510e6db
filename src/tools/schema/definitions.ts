/** The definitions of one schema while it becomes clean: what references lead to, each under a name of its own. */
import type { JsonSchema } from '../../provider.ts'
import { DEFINITION, definitionIn } from './keywords.ts'

interface Definition {
  /** How a clean schema refers to it */
  $ref: string
  /** As the server has it */
  raw: JsonSchema
  /** In its clean form, once it was read */
  schema: JsonSchema
}

export class Definitions {
  readonly #byRaw = new Map<JsonSchema, Definition>()
  readonly #byName = new Map<string, Definition>()
  /** How often a name was wanted */
  readonly #wanted = new Map<string, number>()

  /** The definition of this record; it has its name from the reference (`ref`) that first led to it. */
  of(raw: JsonSchema, ref: string): Definition {
    const known = this.#byRaw.get(raw)
    if (known) return known
    const name = this.#freeName(ref)
    const definition = { $ref: DEFINITION + name, raw, schema: {} }
    this.#byRaw.set(raw, definition)
    this.#byName.set(name, definition)
    return definition
  }

  /** What a clean schema's reference leads to. */
  at($ref: unknown): Definition | undefined {
    return this.#byName.get(definitionIn($ref))
  }

  /** All, also those that come while they are walked through: one that is read may refer to others. */
  all(): Iterable<Definition> {
    return this.#byName.values()
  }

  /** The clean forms by name. */
  schemas(): Map<string, JsonSchema> {
    return new Map([...this.#byName].map(([name, { schema }]) => [name, schema]))
  }

  /**
   * A definition that is a mere reference and leads back to itself, directly or over others, says nothing, and
   * following it would never end: it becomes `open()`, one that accepts anything. Each definition is visited once: a
   * chain of thousands, followed from every link, took seconds.
   */
  openCycles(open: () => JsonSchema): void {
    const passedFrom = new Map<Definition, Definition>()
    for (const start of this.all()) {
      let at: Definition | undefined = start
      while (at?.schema.$ref !== undefined && !passedFrom.has(at)) {
        passedFrom.set(at, start)
        at = this.at(at.schema.$ref)
      }
      if (at && passedFrom.get(at) === start) at.schema = open()
    }
  }

  /** The last word of the reference, with a number if it is taken. */
  #freeName(ref: string): string {
    const word = ref.slice(Math.max(ref.lastIndexOf('/'), ref.lastIndexOf('#')) + 1)
    const base = word.replace(/[^A-Za-z0-9_]/g, '').slice(0, 40) || 'definition'
    let name = base
    // Continues from the last number for this name: thousands may be named alike.
    let n = this.#wanted.get(base) ?? 1
    while (this.#byName.has(name)) name = `${base}${++n}`
    this.#wanted.set(base, n)
    return name
  }
}
