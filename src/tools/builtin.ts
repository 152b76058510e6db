/** What a built-in tool is: a declaration, and a function that answers and never throws. */
import type { McpAnnotations, McpResult } from '../mcp/contract.ts'
import type { JsonSchema } from '../provider.ts'
import type { Scope, Store } from '../store/store.ts'

interface BuiltinContext {
  store: Pick<Store, 'executions'>
  /** Whose turn it is: a built-in sees what its owner may see */
  scope: Scope
  session_id: string
}

export interface Builtin {
  /** Bare: a built-in belongs to no server */
  name: string
  description: string
  parameters: JsonSchema
  annotations: McpAnnotations
  /**
   * `args` fit `parameters`, unless the validator had no time for them (schema/validate.ts): only the answer may depend
   * on them.
   */
  run(args: Record<string, unknown>, context: BuiltinContext): Promise<McpResult>
}
