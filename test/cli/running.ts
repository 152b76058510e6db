/** Runs the command line in this process, as its tests do. */
import { runCli } from '../../src/cli/main.ts'

interface Ran {
  code: number
  /** Lines of the answer */
  out: string[]
  /** Everything else that was said */
  err: string
}

/**
 * Runs one command line in this process. `answer` is what a person gives to a question about the lines so
 * far, `open` what a browser does with the page that is shown.
 */
export async function run(
  env: Record<string, string>,
  line: string,
  answer: (out: string[]) => Promise<string | null> = async () => null,
  open: (page: string) => Promise<void> = async () => {},
): Promise<Ran> {
  const out: string[] = []
  const err: string[] = []
  let opened: Promise<void> | null = null
  const code = await runCli(line.split(' ').filter(Boolean), {
    env,
    cwd: env.BATON_DATA_DIR ?? '/nowhere',
    io: {
      say(text) {
        out.push(text)
        opened ??= /^http/.test(text) ? open(text) : null
      },
      note: (text) => void err.push(text),
      ask: () => answer(out),
      sleep: async () => opened,
      readFile: (path) => {
        if (path.endsWith('missing.json')) throw new Error(`${path} cannot be read`)
        return FILE
      },
    },
  })
  return { code, out, err: err.join('\n') }
}

const FILE = JSON.stringify({
  claudeAiOauth: {
    accessToken: 'sk-ant-oat01-from-a-file-0123456789',
    refreshToken: 'sk-ant-ort01-from-a-file-0123456789',
    expiresAt: Date.now() + 3_600_000,
    scopes: ['user:inference'],
  },
})
