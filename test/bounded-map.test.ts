import t from 'tap'
import { BoundedMap } from '../src/bounded-map.ts'

t.test('what was put in first gives way, and what is put in again is the newest', async (t) => {
  const map = new BoundedMap<number>(2)
  for (const key of ['a', 'b', 'a', 'c']) map.put(key, 1)
  t.same([map.get('a'), map.get('b'), map.get('c')], [1, undefined, 1])
  t.same([...map.values()], [1, 1])
})

t.test('values count by their weight, and the newest stays whatever it weighs', async (t) => {
  const map = new BoundedMap<number>(5, (weight) => weight)
  for (const [key, weight] of [
    ['a', 2],
    ['b', 3],
    ['b', 1],
    ['c', 2],
  ] as const)
    map.put(key, weight)
  t.same([...map.values()], [2, 1, 2], 'what is replaced weighs nothing any more')
  map.put('d', 9)
  t.same([...map.values()], [9])
})
