/**
 * The one place where parts of a conversation become what is stored, and back: a codec may seal parts in which a secret
 * was found. SQL never looks inside a part, so what SQL needs to know is in columns.
 */
import type { ContextEdit } from '../chat/edits.ts'
import { answeredCalls, type Message, type MessageInput, type Part, toolCalls } from '../chat/message.ts'
import { inFull } from '../errors.ts'
import { document } from './json.ts'
import { type AnnouncedEvent, type NewMessage, type Turn, Unreadable } from './store.ts'

/**
 * `context` is the session's id: bind what is sealed to it. `open` gets whatever `seal` gave, and throws for a part
 * that does not open, unless `lost` says what takes its place.
 */
export interface PartsCodec {
  /** One value for each part, in their order. */
  seal(parts: Part[], context: string): unknown[]
  open(stored: unknown, context: string, lost?: Lost): Part[]
}
export type Lost = (cause: unknown) => Part

/** Parts are stored as they are. */
export const PLAIN_PARTS: PartsCodec = {
  seal: (parts) => parts,
  open: (stored) => stored as Part[],
}

/** A message as SQL gives it: message_body in the schema. */
export interface StoredMessage extends Omit<Message, 'parts'> {
  parts: unknown
}
/** A turn as SQL gives it: turn_json in the schema. */
export interface StoredTurn extends Omit<Turn, 'input' | 'context' | 'steps'> {
  input: unknown
  context: unknown
  steps: (Omit<Turn['steps'][number], 'discarded'> & { discarded: boolean })[]
}

export interface Parts {
  /** The columns of a message's content, as put_messages and replace_message take them. */
  content(
    message: MessageInput,
    session: string,
  ): { role: string; parts: string; calls: string[]; results: string[] }
  newMessage(message: NewMessage, session: string): Record<string, unknown>
  message(stored: StoredMessage): Message
  /** For people: a text replaces a part that cannot be opened. */
  shown(stored: StoredMessage): Message
  /** Any parts as a document's text. */
  seal(parts: Part[], session: string): string
  // Verbs that open parts throw Unreadable, unless `lost` says what takes the place of one. Verbs that show them do not
  // throw.
  open(stored: unknown, session: string, lost?: Lost): Part[]
  edits(edits: ContextEdit[], session: string): string
  turn(stored: StoredTurn): Turn
  shownTurn(stored: StoredTurn): Turn
  events(events: AnnouncedEvent[], session: string): string
  openEvents(stored: unknown, session: string): AnnouncedEvent[]
}

export function createParts(given: PartsCodec): Parts {
  const codec = withUnreadable(given)
  const seal = (parts: Part[], session: string) => document(codec.seal(parts, session))
  const content: Parts['content'] = (message, session) => ({
    role: message.role,
    parts: seal(message.parts, session),
    calls: toolCalls(message).map((call) => call.call_id),
    results: answeredCalls(message),
  })
  return {
    seal,
    open: codec.open,
    content,
    newMessage: (message, session) => ({
      id: message.id,
      turn_id: message.turn_id,
      incomplete: message.incomplete ?? false,
      ...content(message, session),
    }),
    // Changed in place: a history may have thousands of messages.
    message: (stored) => Object.assign(stored, { parts: codec.open(stored.parts, stored.session_id) }),
    shown: (stored) => Object.assign(stored, { parts: codec.open(stored.parts, stored.session_id, inWords) }),
    edits: (edits, session) =>
      document(
        edits.map((edit) => {
          if (!('message' in edit)) return edit
          const { role, parts } = edit.message
          return { ...edit, message: { role, parts: codec.seal(parts, session) } }
        }),
      ),
    turn: (stored) => toTurn(codec, stored),
    shownTurn: (stored) => toTurn(codec, stored, inWords),
    // An event may quote any part, so all of them are treated as one text.
    events: (events, session) => seal([{ type: 'text', text: JSON.stringify(events) }], session),
    openEvents(stored, session) {
      const [part] = stored === null ? [] : codec.open(stored, session)
      return part?.type === 'text' ? (JSON.parse(part.text) as AnnouncedEvent[]) : []
    },
  }
}

const inWords = (cause: unknown): Part => ({
  type: 'notice',
  text: `This part cannot be opened: ${inFull(cause)}`,
})

/** The codec, with every failure to open parts turned into Unreadable. */
const withUnreadable = ({ seal, open }: PartsCodec): PartsCodec => ({
  seal,
  open(stored, session, lost) {
    try {
      return open(stored, session, lost)
    } catch (cause) {
      throw new Unreadable(cause)
    }
  },
})

const toTurn = (codec: PartsCodec, stored: StoredTurn, lost?: Lost): Turn => ({
  ...stored,
  input: codec.open(stored.input, stored.session_id, lost),
  context: openEdits(codec, stored.context, stored.session_id, lost),
  steps: stored.steps.map(({ discarded, ...step }) => (discarded ? { ...step, discarded } : step)),
})

function openEdits(codec: PartsCodec, stored: unknown, session: string, lost?: Lost): ContextEdit[] {
  const edits = stored as (ContextEdit & { message?: { role: MessageInput['role']; parts: unknown } })[]
  return edits.map((edit) =>
    edit.message
      ? { ...edit, message: { ...edit.message, parts: codec.open(edit.message.parts, session, lost) } }
      : edit,
  ) as ContextEdit[]
}
