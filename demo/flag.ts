/** The one flag that a command of this folder takes. */
import { parseArgs } from 'node:util'

/** Whether `--name` was given. Anything else ends the process with `usage`: in error, but for `--help`. */
export function flag(name: string, usage: string): boolean {
  const type = 'boolean'
  try {
    const { values } = parseArgs({ options: { [name]: { type }, help: { type } } })
    if (!values.help) return values[name] === true
    console.log(usage)
    process.exit(0)
  } catch (failure) {
    console.error(`${(failure as Error).message}\n${usage}`)
    process.exit(2)
  }
}
