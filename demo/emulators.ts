/**
 * The emulated model services on fixed ports, so that the README's walk can be tried without an account.
 */
import { type Roots, startVendors, type Vendors } from '../test/emulators/vendors.ts'
import { flag } from './flag.ts'

const USAGE = `npm run emulators                    serves them until Ctrl-C
npm run -s emulators -- --settings   prints the settings that lead Baton to them, for the shell's \`eval\``
const isForShell = flag('settings', USAGE)
const PORTS: Record<keyof Vendors, number> = { openai: 8791, anthropic: 8792, gemini: 8793 }

if (isForShell) {
  const at = (vendor: keyof Vendors) => `http://127.0.0.1:${PORTS[vendor]}`
  const settings: Roots & Record<string, string> = {
    BATON_OPENAI_BASE_URL: `${at('openai')}/v1`,
    BATON_CHATGPT_BASE_URL: `${at('openai')}/backend-api/codex`,
    BATON_ANTHROPIC_BASE_URL: at('anthropic'),
    BATON_GEMINI_BASE_URL: `${at('gemini')}/v1beta`,
    BATON_CODE_ASSIST_BASE_URL: `${at('gemini')}/v1internal`,
    BATON_ENABLE_OAUTH: 'openai,anthropic,gemini',
  }
  for (const [name, value] of Object.entries(settings)) console.log(`export ${name}=${value}`)
} else {
  try {
    await startVendors(PORTS)
  } catch (failure) {
    const { code, port } = failure as { code?: string; port?: number }
    if (code !== 'EADDRINUSE') throw failure
    console.error(`Port ${port} is taken: the emulated models may be running already.`)
    process.exit(1)
  }
  console.log('Emulated models on this machine; they do what the text says: call <tool> with <json>.')
  console.log('Start Baton with: eval "$(npm run -s emulators -- --settings)" && npm start')
}
