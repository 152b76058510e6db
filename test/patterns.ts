/** In a pattern of `t.match`, a list that holds nothing: `[]` there fits every list, since only what it names is compared. */
export const NONE = { length: 0 }
