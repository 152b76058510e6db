/** Reads the rest of a tool result that was too long for the conversation. */
import { BatonError } from '../errors.ts'
import type { Builtin } from '../tools/builtin.ts'
import { INSPECT, outputSlice } from '../tools/results.ts'

export const inspectToolOutput: Builtin = {
  name: INSPECT,
  description:
    'Reads a part of an earlier tool result of this conversation that was too long to be shown whole. Give the exec_id from its notice, and either an offset in bytes or a JSON Pointer into a structured result.',
  parameters: {
    type: 'object',
    properties: {
      exec_id: { type: 'string', description: 'The id in the notice, exec_…' },
      path: { type: 'string', description: 'JSON Pointer into a structured result, such as /items/0' },
      offset: { type: 'integer', minimum: 0, description: 'First byte to read (0)' },
      limit: { type: 'integer', minimum: 1, maximum: 32_768, description: 'Most bytes to read (16384)' },
    },
    required: ['exec_id'],
  },
  annotations: { readOnlyHint: true, destructiveHint: false, idempotentHint: true, openWorldHint: false },
  async run(args, { store, scope, session_id }) {
    const {
      exec_id,
      path = '',
      offset = 0,
      limit = 16_384,
    } = args as {
      exec_id: string
      path?: string
      offset?: number
      limit?: number
    }
    const [row, stored] = await Promise.all([
      store.executions.get(scope, exec_id),
      store.executions.output(scope, exec_id),
    ])
    if (!row || !stored || row.session_id !== session_id) {
      return failed(`This conversation has no stored output ${exec_id}.`)
    }
    try {
      const slice = outputSlice(stored, { path, offset, limit })
      const { next_offset, total_bytes, offset: from } = slice
      const rest = next_offset === null ? 'This is the end.' : `Go on at offset ${next_offset}.`
      const text = `${slice.content}\n\n[Bytes ${from} to ${next_offset ?? total_bytes} of ${total_bytes}. ${rest}]`
      return { content: [{ type: 'text', text }], is_error: false }
    } catch (thrown) {
      if (thrown instanceof BatonError) return failed(thrown.message)
      throw thrown
    }
  },
}

const failed = (text: string) => ({ content: [{ type: 'text' as const, text }], is_error: true })
