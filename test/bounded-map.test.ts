import t from 'tap'
import { BoundedMap } from '../src/bounded-map.ts'

t.test('a full map drops its oldest entry; an entry that is put in again counts as the newest', async (t) => {
  const map = new BoundedMap<number>(2)
  for (const key of ['a', 'b', 'a', 'c']) map.put(key, 1)
  t.same([map.get('a'), map.get('b'), map.get('c')], [1, undefined, 1])
  t.same([...map.values()], [1, 1])
})

t.test('a map is bounded by the weight of its values; the newest stays, however heavy it is', async (t) => {
  const map = new BoundedMap<number>(5, (weight) => weight)
  for (const [key, weight] of [
    ['a', 2],
    ['b', 3],
    ['b', 1],
    ['c', 2],
  ] as const)
    map.put(key, weight)
  t.same([...map.values()], [2, 1, 2], 'a replaced value no longer counts')
  map.put('d', 9)
  t.same([...map.values()], [9])
})
