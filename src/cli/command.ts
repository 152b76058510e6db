/** A command of the command line: data for the help, and one function. */
import type { Config } from '../config/config.ts'
import { inFull } from '../errors.ts'
import type { Access } from './access.ts'

/** A command, as the help shows it and `runCli` runs it. */
export interface Command {
  /** The words that name it: `keys create` */
  name: string
  /** Its own options, for people */
  usage: string
  summary: string
  /** Its arguments without dashes, all required, as the help names them */
  takes: readonly string[]
  options: Readonly<Record<string, { type: 'string' | 'boolean' }>>
  /** Resolves with the exit code. Throws UsageError, and whatever the work throws: the message is shown. */
  run(given: Given): Promise<number>
}

/** What a command is given: its arguments, and doors to the world that tests replace. */
export interface Given {
  args: readonly string[]
  text(option: string): string | undefined
  flag(option: string): boolean
  /** Opened at the first call, closed by whoever runs the command */
  access(): Promise<Access>
  /** Throws ConfigError. */
  load(): { config: Config; warnings: string[] }
  io: Io
}
/** The terminal and the files of whoever runs a command. */
export interface Io {
  /** One line of the answer */
  say(line: string): void
  /** One line for the person, which is not part of the answer */
  note(line: string): void
  /** One line from the person; null if nobody answers */
  ask(question: string): Promise<string | null>
  sleep(ms: number): Promise<unknown>
  readFile(path: string): string
}

/** The command line makes no sense; exit code 64 (EX_USAGE of sysexits.h). */
export class UsageError extends Error {
  override name = 'UsageError'
}

/** Why a fetch failed: its error says only that it did, the cause says why. */
export const whyNot = (failure: unknown): string =>
  inFull(failure instanceof Error ? (failure.cause ?? failure) : failure).trim()

/** Options of every command that needs an installation. */
export const TARGET = {
  url: { type: 'string' },
  key: { type: 'string' },
  owner: { type: 'string' },
  json: { type: 'boolean' },
} as const

/** Shows rows under a heading, columns as wide as they need to be; with --json, each row as one line of JSON. */
export function show<T extends object>(
  { io, flag }: Pick<Given, 'io' | 'flag'>,
  rows: readonly T[],
  columns: Readonly<Record<string, (row: T) => string | null>>,
): void {
  if (flag('json')) {
    for (const row of rows) io.say(JSON.stringify(row))
    return
  }
  const names = Object.keys(columns)
  const cells = [names, ...rows.map((row) => Object.values(columns).map((cell) => cell(row) ?? '-'))]
  const widths = names.map((_, at) => Math.max(...cells.map((line) => line[at]?.length ?? 0)))
  for (const line of cells)
    io.say(
      line
        .map((cell, at) => cell.padEnd(widths[at] ?? 0))
        .join('  ')
        .trimEnd(),
    )
}

/** Says what was done: with --json as JSON, else in words. */
export function tell({ io, flag }: Pick<Given, 'io' | 'flag'>, done: object, words: string): void {
  if (flag('json')) io.say(JSON.stringify(done))
  else io.note(words)
}
