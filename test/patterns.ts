/** In a pattern of `t.match`, a list that holds nothing: `[]` there fits every list, since only what it names is compared. */
export const NONE = { length: 0 }

/** … and an object that holds nothing, since `{}` there fits every object. */
export const EMPTY = Object.defineProperty(() => {}, Symbol.hasInstance, {
  value: (found: object) => Object.keys(found).length === 0,
})

/** … and what can be used: a word there fits every text that holds it, `'available'` fits 'unavailable'. */
export const AVAILABLE = /^available$/
