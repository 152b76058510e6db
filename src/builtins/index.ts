/** Every built-in tool; a new one is a file beside this one and a line here. */
import type { Builtin } from '../tools/builtin.ts'
import { inspectToolOutput } from './inspect_tool_output.ts'

/** The built-in tools that a toolbox may name. */
export const BUILTINS: readonly Builtin[] = [inspectToolOutput]
