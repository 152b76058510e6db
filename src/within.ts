/** The answer, or null when it takes longer; leaves no timer behind. */
export async function within<T>(ms: number, answer: Promise<T>): Promise<T | null> {
  let timer: NodeJS.Timeout | undefined
  const over = new Promise<null>((resolve) => {
    timer = setTimeout(() => resolve(null), ms)
  })
  return Promise.race([answer, over]).finally(() => clearTimeout(timer))
}
