/**
 * The output items of one stream, and which of them an event is about. The API tells by `output_index`. Relays lose it,
 * give one index to all items (BerriAI/litellm#36375), or an item another id in each event: an index is believed until
 * two items have the same, from then on ids are, and an event without a known one is about the item that began last.
 */
import { type Json, number, string } from '../json.ts'

type Kind = 'message' | 'reasoning' | 'call' | 'passed over'

/**
 * An output item while it streams. `pieces` holds its texts by content, or its summary by segment; the numbers are the
 * vendor's, and no list is made as long as one says.
 */
export interface Item {
  /** Of its part */
  index: number
  /** It was announced under; null before it was */
  id: string | null
  kind: Kind
  pieces: Map<number, string>
  /** Of a call, once known */
  callId?: string
  name: string
  phase: unknown
  done: boolean
}

const KINDS: ReadonlyMap<string, Kind> = new Map([
  ['message', 'message'],
  ['reasoning', 'reasoning'],
  ['function_call', 'call'],
])
const kindOf = (wire: Json): Kind => KINDS.get(string(wire.type) ?? '') ?? 'passed over'

/** What an event says of its item. */
interface Told {
  place: number | undefined
  /** Empty where it names none */
  id: string
  kind: Kind
  /** The event announces the item, tells of it, or finishes it */
  stage: 'begins' | 'goes on' | 'ends'
}

export type Items = ReturnType<typeof createItems>

export function createItems() {
  const items = new Map<number, Item>()
  const byId = new Map<string, Item>()
  let top = -1
  let believesPlaces = true

  function placeOf({ place, id }: Told): number {
    const known = byId.get(id)?.index
    return believesPlaces ? (place ?? known ?? items.size) : (known ?? top)
  }

  function begin(index: number, kind: Kind): Item {
    const item: Item = { index, id: null, kind, pieces: new Map(), name: '', phase: undefined, done: false }
    items.set(index, item)
    top = Math.max(top, index)
    return item
  }

  function find(told: Told): Item {
    const place = placeOf(told)
    const there = items.get(place)
    const isTaken = there !== undefined && isAnother(there, told)
    if (isTaken) believesPlaces = false
    const item = isTaken ? begin(top + 1, told.kind) : (there ?? begin(place, told.kind))
    // Announced without a type, it is what its events are about.
    if (item.kind === 'passed over') item.kind = told.kind
    if (told.id !== '') byId.set(told.id, item)
    if (told.stage !== 'goes on') item.id ??= told.id
    return item
  }

  return {
    all: () => items.values(),
    /** The item that an event tells of; one that was never announced begins with its first event. */
    of: ({ output_index, item_id }: Json, kind: Kind): Item =>
      find({ place: number(output_index), id: string(item_id) ?? '', kind, stage: 'goes on' }),
    /** The item that an event announces or finishes; `wire` is the item as it stands there. */
    own: ({ output_index }: Json, wire: Json, stage: 'begins' | 'ends'): Item =>
      find({ place: number(output_index), id: string(wire.id) ?? '', kind: kindOf(wire), stage }),
    /** The item at this place of the terminal event's list. Null for another one: the list lacks what was streamed. */
    listed(place: number, wire: Json): Item | null {
      const told: Told = { place, id: string(wire.id) ?? '', kind: kindOf(wire), stage: 'goes on' }
      const there = items.get(placeOf(told))
      return there && isAnother(there, told) ? null : find(told)
    },
  }
}

/** What is said cannot be of this item: it is of another kind, or was announced, or has ended, under another id. */
function isAnother(item: Item, { id, kind, stage }: Told): boolean {
  const isOfKind = kind === item.kind || kind === 'passed over' || item.kind === 'passed over'
  if (!isOfKind || item.id === null || stage === 'goes on') return !isOfKind
  return id === '' ? stage === 'begins' && item.done : id !== item.id && (stage === 'begins' || item.done)
}
