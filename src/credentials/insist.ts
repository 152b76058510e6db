const TRIES = 4

/** Writes what nobody could give again, such as rotated tokens: the store's bad moment must not cost a login. */
export async function insist<T>(
  write: () => Promise<T>,
  sleep: (ms: number) => Promise<unknown>,
): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await write()
    } catch (thrown) {
      if (tries === TRIES) throw thrown
      await sleep(100 * 2 ** tries)
    }
  }
}
