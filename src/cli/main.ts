/** The command line from its words to its exit code. Knows no command's work. */
import { type ParseArgsConfig, parseArgs } from 'node:util'
import { ConfigError, EX_CONFIG, loadConfig } from '../config/load.ts'
import { inFull } from '../errors.ts'
import { jsonEscaped } from '../text.ts'
import { VERSION } from '../version.ts'
import { type Access, openAccess, RULE, type Target } from './access.ts'
import { type Command, type Given, type Io, UsageError } from './command.ts'
import { CREDENTIAL_COMMANDS } from './credentials.ts'
import { DOCTOR } from './doctor.ts'
import { KEY_COMMANDS } from './keys.ts'

/** The parts of the process that tests replace. */
interface World {
  env: Readonly<Record<string, string | undefined>>
  cwd: string
  io: Io
}

const COMMANDS: readonly Command[] = [...CREDENTIAL_COMMANDS, ...KEY_COMMANDS, DOCTOR]
/** From sysexits.h */
const EX_USAGE = 64
/** As `POST /v1/keys` takes it */
const OWNER = /^[^\s\p{C}]{1,128}$/u

/** Resolves with the exit code: 0, 1 for a failure, 64 for a wrong command line, 78 for a wrong configuration. */
export async function runCli(argv: readonly string[], world: World): Promise<number> {
  const io = harmless(world.io)
  try {
    const explained = explainedBy(argv)
    if (explained.length > 0) {
      for (const line of help(explained)) io.say(line)
      return argv.length === 0 ? EX_USAGE : 0
    }
    if (argv[0] === '--version') {
      io.say(VERSION)
      return 0
    }
    return await runCommand(commandIn(argv), argv, { ...world, io })
  } catch (failure) {
    io.note(inFull(failure))
    if (failure instanceof UsageError) return EX_USAGE
    return failure instanceof ConfigError ? EX_CONFIG : 1
  }
}

/**
 * Names and errors may be strangers' words: characters hidden in them must not move the cursor, or add a line to the
 * answer.
 */
const harmless = (io: Io): Io => ({
  ...io,
  say: (line) => io.say(jsonEscaped(line).replace(/[\t\n]/g, ' ')),
  note: (words) => io.note(jsonEscaped(words)),
})

/** The commands that a line asks about without naming one: all, or those that begin with its word (`keys --help`) */
function explainedBy([first, second = '']: readonly string[]): readonly Command[] {
  const asks = /^(--help|-h|help)$/
  if (first === undefined || asks.test(first)) return COMMANDS
  return asks.test(second) ? COMMANDS.filter(({ name }) => name.startsWith(`${first} `)) : []
}

function commandIn(argv: readonly string[]): Command {
  const found = COMMANDS.find(({ name }) => name === argv.slice(0, name.split(' ').length).join(' '))
  if (found) return found
  const [first = '', second = ''] = argv
  // An option, or what follows it, may be a key.
  if (first.startsWith('-')) throw new UsageError('The command comes first, then its options.')
  const words = second.startsWith('-') ? first : `${first} ${second}`.trimEnd()
  const kin = COMMANDS.filter(({ name }) => name.split(' ')[0] === first).map(({ name }) => name)
  const known = kin.length > 0 ? kin : COMMANDS.map(({ name }) => name)
  throw new UsageError(`There is no command ${words}. Known: ${known.join(', ')}.`)
}

async function runCommand(command: Command, argv: readonly string[], world: World): Promise<number> {
  const { io } = world
  const { values, positionals } = parsed(command, argv.slice(command.name.split(' ').length))
  if (values.help) {
    for (const line of helpFor(command)) io.say(line)
    return 0
  }
  if (positionals.length !== command.takes.length) throw new UsageError(usageOf(command))
  const text = (option: string) => {
    const value = values[option]
    return typeof value === 'string' ? value : undefined
  }
  const owner = text('owner')
  // Empty if a script's variable is not set: what is made would be nobody's, and a list would be empty.
  if (owner !== undefined && !OWNER.test(owner)) {
    throw new UsageError('--owner must have 1 to 128 characters without white space.')
  }
  const opened: { access?: Promise<Access> } = {}
  const load = () => loadConfig(world.env, world.cwd)
  const given: Given = {
    args: positionals,
    text,
    flag: (option) => values[option] === true,
    access() {
      const adminKey = world.env.BATON_ADMIN_KEY?.trim() || null
      opened.access ??= openAccess(targetOf(command, text), () => load().config, adminKey)
      return opened.access
    },
    load,
    io,
  }
  try {
    return await command.run(given)
  } finally {
    await opened.access?.then((access) => access.close()).catch(() => {})
  }
}

function parsed(command: Command, args: string[]) {
  const config: ParseArgsConfig = {
    args,
    options: { ...command.options, help: { type: 'boolean', short: 'h' } },
    allowPositionals: true,
    tokens: true,
  }
  try {
    const read = parseArgs(config)
    const named = (read.tokens ?? []).flatMap((token) => (token.kind === 'option' ? [token.name] : []))
    const twice = named.find((name, at) => named.indexOf(name) < at)
    if (twice !== undefined) throw new Error(`--${twice} is given twice.`)
    return read
  } catch (failure) {
    throw new UsageError(`${inFull(failure)}\n${usageOf(command)}`)
  }
}

/** For `keys create`, `--owner` is the new key's owner; everywhere else it says whose keys and credentials are meant. */
const targetOf = ({ name }: Command, text: Given['text']): Target => ({
  url: text('url'),
  key: text('key'),
  owner: name === 'keys create' ? undefined : text('owner'),
})

/** The command with what follows its name. */
const formOf = ({ name, takes, usage }: Command): string =>
  [name, ...takes.map((argument) => `<${argument}>`), usage].join(' ').trimEnd()

const usageOf = (command: Command): string => `Usage: baton ${formOf(command)}`

const help = (commands: readonly Command[]): string[] => [
  'Usage: baton <command>',
  '`baton` stands for: npm run -s baton -- (without -s, npm writes lines of its own above the answer)',
  '',
  ...commands.flatMap((command) => [`  ${formOf(command)}`, `      ${command.summary}`]),
  '',
  ...COMMON,
]

const helpFor = (command: Command): string[] => [usageOf(command), '', command.summary, '', ...COMMON]

const COMMON = [
  'Every command takes: [--url <url>] [--key <key>] [--owner <owner>] [--json] [--help]',
  '(keys rotate-encryption takes no --owner.) `baton --version` tells the version.',
  '',
  ...RULE.split('\n'),
  '--owner: whose keys and credentials to work on, on the store. Default: everybody; what is made then belongs to local or admin.',
  '--json: each line of the answer is one object.',
  'Exit codes: 0 done, 1 failed, 64 wrong command line, 78 wrong configuration.',
]
