/**
 * What an emulated model does, told once for every vendor. A Scene is the behaviour as data; each
 * emulator renders it into its own wire format. Without a script, the user's text is the script:
 *
 *   call <exposed_name> with <json>   calls the tool (several lines: in parallel); undeclared: says so
 *   think [text]                      reasons first, with a readable summary
 *   say <text>                        answers with the text (several lines: joined by line breaks)
 *   slow <n> <ms>                     sends the text in n deltas, ms apart (no text given: n words)
 *   then                              what follows is for the next request of the turn, after the results
 *   refuse | length                   ends with a refusal, or cut off by the length limit
 *   hang | cut                        the stream stops before its end: silent, or disconnected
 *
 * After tool results and with no lines left, the answer quotes the results; any other text is echoed.
 */
import type { JsonReply, Recorded } from './http.ts'

export type SceneItem =
  | { type: 'text'; text: string }
  /** `parts`: the readable summary, in the segments that the vendor has; may be empty. */
  | { type: 'reasoning'; parts: string[] }
  /** `name` is an exposed name. A string as `arguments` is sent as it is, valid JSON or not. */
  | { type: 'call'; name: string; arguments: Record<string, unknown> | string }
  /** Holds the stream here until the promise settles. */
  | { type: 'wait'; until: Promise<unknown> }

export interface SceneUsage {
  input_tokens: number
  output_tokens: number
  reasoning_tokens: number
  cached_tokens: number
}

export interface Answer {
  items: SceneItem[]
  usage?: Partial<SceneUsage>
  /** Absent: `stop`, or the vendor's word for tool calls if there are any. */
  finish?: 'stop' | 'length' | 'refusal'
  /** Only for OpenAI: the model is not done, although it calls no tool. */
  goesOn?: true
  /** Text and arguments are sent in this many deltas, this many milliseconds apart. */
  pace?: { deltas: number; ms: number }
  /**
   * Replaces the vendor's end of stream: `close` ends the body cleanly, `cut` destroys the socket, `hang` keeps it open
   * and silent. An object is an error that the vendor sends within the stream.
   */
  ending?: 'close' | 'cut' | 'hang' | { code: string; message: string }
  /** Number of frames before this ending; absent: all but the vendor's end of stream. */
  after?: number
  /** Bytes per write; absent: one frame per write. */
  chunk?: number
}

/** A plain reply replaces a model's answer: an error body, or a page of the vendor's edge. */
export type Scene = Answer | JsonReply

/** What a scene may depend on, read from the vendor's body by its emulator. */
export interface SceneInput {
  /** Exposed names of the declared tools. */
  tools: readonly string[]
  /** Text of the last user message. */
  user: string
  /** How many requests of this turn were answered by tool results since this message. */
  step: number
  /** Texts of the tool results that the request ends with. */
  results: readonly string[]
}

/** A test's own behaviour; null or undefined falls back to the default scene. */
export type Script = (
  request: Recorded,
  input: SceneInput,
) => Scene | null | undefined | Promise<Scene | null | undefined>

export const text = (value: string): Answer => ({ items: [{ type: 'text', text: value }] })
export const calls = (...list: [name: string, args: Record<string, unknown> | string][]): Answer => ({
  items: list.map(([name, args]) => ({ type: 'call', name, arguments: args })),
})

/** The scene that the user's text asks for. */
export function defaultScene({ tools, user, step, results }: SceneInput): Answer {
  const lines = user.split(/\n[ \t]*then[ \t]*(?:\n|$)/)[step]?.split('\n') ?? []
  const answer: Answer = { items: [] }
  const said: string[] = []
  let understood = false
  for (const line of lines) {
    const command = COMMANDS.find(({ pattern }) => pattern.test(line))
    if (!command) continue
    understood = true
    command.play(line.match(command.pattern) ?? [], { answer, said, tools })
  }
  if (!understood) return text(step > 0 ? quoted(results) : user || '(nothing was said)')
  const { pace, items } = answer
  if (pace && said.length === 0 && !items.some(({ type }) => type === 'call')) {
    said.push(Array.from({ length: pace.deltas }, (_, i) => `word${i + 1}`).join(' '))
  }
  if (said.length === 0) return answer
  const at = items.findIndex(({ type }) => type === 'call')
  items.splice(at < 0 ? items.length : at, 0, { type: 'text', text: said.join('\n') })
  return answer
}

const quoted = (results: readonly string[]) => `The tools answered: ${results.join(' | ')}`

interface Stage {
  answer: Answer
  said: string[]
  tools: readonly string[]
}

const COMMANDS: { pattern: RegExp; play(match: string[], stage: Stage): void }[] = [
  {
    pattern: /^\s*call (\S+)(?: with (.*))?$/,
    play([, name = '', args = '{}'], { answer, said, tools }) {
      if (tools.includes(name)) answer.items.push({ type: 'call', name, arguments: argumentsOf(args) })
      else said.push(`There is no tool ${name}.`)
    },
  },
  {
    pattern: /^\s*think(?: (.*))?$/,
    play([, thought = '**Planning**\n\nThe request needs a plan.'], { answer }) {
      answer.items.unshift({ type: 'reasoning', parts: [thought] })
    },
  },
  { pattern: /^\s*say (.*)$/, play: ([, words = ''], { said }) => void said.push(words) },
  {
    pattern: /^\s*slow (\d+) (\d+)\s*$/,
    play([, deltas, ms], { answer }) {
      answer.pace = { deltas: Number(deltas), ms: Number(ms) }
    },
  },
  {
    pattern: /^\s*(refuse|length)\s*$/,
    play([, word], { answer }) {
      answer.finish = word?.trim() === 'refuse' ? 'refusal' : 'length'
    },
  },
  {
    pattern: /^\s*(hang|cut)\s*$/,
    play([, word], { answer }) {
      answer.ending = word === 'hang' ? 'hang' : 'cut'
    },
  },
]

/** JSON as an object. Anything else stays text, so that a test can make a model send broken arguments. */
function argumentsOf(json: string): Record<string, unknown> | string {
  try {
    const value: unknown = JSON.parse(json)
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
      return value as Record<string, unknown>
    }
  } catch {
    // The text is sent as it is.
  }
  return json
}

/** Cuts a text into `count` pieces of whole characters (fewer if the text is shorter); without `count`, into words. */
export function pieces(value: string, count?: number): string[] {
  if (count === undefined) return value.match(/\S+\s*|\s+/gu) ?? []
  const characters = [...value]
  const edge = (i: number) => Math.floor((i * characters.length) / count)
  const list = Array.from({ length: count }, (_, i) => characters.slice(edge(i), edge(i + 1)).join(''))
  return list.filter((piece) => piece !== '')
}
