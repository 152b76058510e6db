/**
 * The output items of one stream, and which of them an event is about. The API says so by `output_index`. Relays lose
 * it, give one index to all items (BerriAI/litellm#36375), or give an item another id in each event. So the index is
 * trusted until two items turn out to share one, or an open item to have two, or the index of another one. From then on
 * ids are trusted (an item's, or its call's), and an event without a known id is about the item that began last.
 */
import { type Json, number, string } from '../json.ts'

type Kind = 'message' | 'reasoning' | 'call' | 'passed over'

/**
 * An output item while it streams. `pieces` holds its texts by content, or its summary by segment, under the vendor's
 * numbers; a map, since a list would be as long as the largest number.
 */
export interface Item {
  /** The index of its part */
  index: number
  /** The id under which the item was announced or finished, empty if it had none; null until then */
  id: string | null
  /** The vendor's id of its call; empty if none is known */
  call: string
  kind: Kind
  pieces: Map<number, string>
  /** Some of its text has been passed on as a delta */
  isShown: boolean
  /** A call's canonical id; empty until it is known, as its name */
  callId: string
  name: string
  phase: unknown
  done: boolean
  /** Reasoning that ended without its token, which may be in the terminal event alone (earendil-works/pi#6409: Azure) */
  isBare: boolean
}

const KINDS: ReadonlyMap<string, Kind> = new Map([
  ['message', 'message'],
  ['reasoning', 'reasoning'],
  ['function_call', 'call'],
])
const kindOf = (wire: Json): Kind => KINDS.get(string(wire.type) ?? '') ?? 'passed over'

/** What an event says about its item. */
interface Told {
  place: number | undefined
  /** Empty if the event names none */
  id: string
  /** Empty if the item is not a call, or the event names none */
  call: string
  kind: Kind
  /** The event announces the item, continues it, or finishes it */
  stage: 'begins' | 'goes on' | 'ends'
}

const toldOf = (wire: Json, place: number | undefined, stage: Told['stage']): Told => ({
  place,
  id: string(wire.id) ?? '',
  call: string(wire.call_id) ?? '',
  kind: kindOf(wire),
  stage,
})

export type Items = ReturnType<typeof createItems>

export function createItems() {
  const items = new Map<number, Item>()
  const byId = new Map<string, Item>()
  const byCall = new Map<string, Item>()
  let top = -1
  let believesPlaces = true

  const known = ({ id, call }: Told): Item | undefined => byCall.get(call) ?? byId.get(id)

  function placeOf(told: Told): number {
    const at = known(told)?.index
    if (!believesPlaces) return at ?? top
    return told.place ?? at ?? (isOfLast(told) ? top : items.size)
  }

  /** Whether an event that names no item is about the last one. */
  function isOfLast({ id, stage }: Told): boolean {
    const last = items.get(top)
    return id === '' && stage !== 'begins' && last !== undefined && !(stage === 'ends' && last.done)
  }

  /** The open item that an event continues or finishes, by its id. */
  function openOf(told: Told): Item | undefined {
    const item = told.stage === 'begins' ? undefined : known(told)
    return item && !item.done && !isAnother(item, told) ? item : undefined
  }

  function begin(index: number, kind: Kind): Item {
    const item: Item = {
      index,
      id: null,
      call: '',
      kind,
      pieces: new Map(),
      isShown: false,
      callId: '',
      name: '',
      phase: undefined,
      done: false,
      isBare: false,
    }
    items.set(index, item)
    top = Math.max(top, index)
    return item
  }

  function find(told: Told): Item {
    const place = placeOf(told)
    const there = items.get(place)
    const isTaken = there !== undefined && isAnother(there, told)
    const open = openOf(told)
    const isMoved = isSame(open, told) && !isSame(there, told)
    const own = !there || isTaken || isMoved ? open : there
    if (own !== there) believesPlaces = false
    const item = own ?? begin(isTaken ? top + 1 : place, told.kind)
    return heard(item, told)
  }

  function heard(item: Item, told: Told): Item {
    // An item that was announced without a type takes the kind of its events.
    if (item.kind === 'passed over') item.kind = told.kind
    if (told.id !== '') byId.set(told.id, item)
    if (told.call !== '') byCall.set(told.call, item)
    item.call ||= told.call
    if (told.stage !== 'goes on') item.id ??= told.id
    return item
  }

  return {
    all: () => items.values(),
    size: () => items.size,
    /** The item that an event is about; one that was never announced begins with its first event. */
    of: ({ output_index, item_id }: Json, kind: Kind): Item =>
      find({ place: number(output_index), id: string(item_id) ?? '', call: '', kind, stage: 'goes on' }),
    /** The item that an event announces or finishes; `wire` is the item as the event holds it. */
    own: ({ output_index }: Json, wire: Json, stage: 'begins' | 'ends'): Item =>
      find(toldOf(wire, number(output_index), stage)),
    /**
     * The items of the terminal event's list, as it holds them: first those with known ids, then the others by order or
     * place. An entry at another item's place is left out: such a list lacks items that were streamed.
     */
    listed(list: readonly Json[]): Map<Item, Json> {
      const found = new Map<Item, Json>()
      // Whatever the items' indexes are, a list of as many has them in their order.
      const order = list.length === items.size ? [...items.keys()].sort((a, b) => a - b) : []
      const all = list.map((wire, place) => ({
        wire,
        told: toldOf(wire, place, 'goes on'),
        at: order[place],
      }))
      const rest = all.filter(({ wire, told }) => {
        const item = known(told)
        // A relay may give several calls one item's id.
        const isOtherCall = told.call !== '' && item?.call !== '' && item?.call !== told.call
        if (!item || isOtherCall || found.has(item) || isAnother(item, told)) return true
        found.set(item, wire)
        return false
      })
      for (const { wire, told, at } of rest) {
        const item = items.get(at ?? placeOf(told)) ?? find(told)
        if (!found.has(item) && !isAnother(item, told)) found.set(heard(item, told), wire)
      }
      return found
    },
  }
}

/** The event cannot be about this item, which has another kind, or began or ended under another id. */
function isAnother(item: Item, told: Told): boolean {
  const { id, call, kind, stage } = told
  const isOfKind = kind === item.kind || kind === 'passed over' || item.kind === 'passed over'
  if (!isOfKind || item.id === null || stage === 'goes on') return !isOfKind
  if (id === '' && call === '') return stage === 'begins' && item.done
  return !isSame(item, told) && (stage === 'begins' || item.done)
}

/** The event has the item's call, or the id under which it began or ended. */
const isSame = (item: Item | undefined, { id, call }: Told): boolean =>
  call !== '' && item?.call ? call === item.call : id === item?.id
