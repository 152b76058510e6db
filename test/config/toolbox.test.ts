import t from 'tap'
import { load, problems } from './loading.ts'

const MCPS = `
toolbox:
  max_concurrent: 3
  inspect: false
  tools:
    - {name: files.read, max_instances: 2, timeout: P0DT0H0M30S, require_approval: always}
    - {name: clock}
  mcps:
    - name: files
      transport: stdio
      command: node
      args: [server.js, 8080]
      env: {TOKEN: 12345, LOUD: true}
      mode: strict
    - name: web
      transport: streamable_http
      url: http://127.0.0.1:9/mcp
      headers: {X-Api-Key: 123}
      mode: dynamic
      default_tool_config: {max_instances: 7, timeout: PT1M}
      prompts: [greet]
      bind: manual
      allow_tools: [get_*]
      deny_tools: [get_secret]
      require_approval: destructive
      trust_annotations: false
      pin: block
`

t.test('a toolbox is read, and fields that it leaves out have their defaults', async (t) => {
  const { toolbox } = load({}, MCPS).config
  t.same(toolbox, {
    maxConcurrent: 3,
    inspect: false,
    tools: [
      { name: 'files.read', maxInstances: 2, timeoutMs: 30_000, requireApproval: 'always' },
      { name: 'clock' },
    ],
    mcps: [
      {
        name: 'files',
        transport: 'stdio',
        command: 'node',
        args: ['server.js', '8080'],
        env: { TOKEN: '12345', LOUD: 'true' },
        mode: 'strict',
        bind: 'auto',
        trust_annotations: true,
      },
      {
        name: 'web',
        transport: 'streamable_http',
        url: 'http://127.0.0.1:9/mcp',
        headers: { 'X-Api-Key': '123' },
        mode: 'dynamic',
        default_tool_config: { max_instances: 7, timeout: 'PT60S' },
        bind: 'manual',
        allow_tools: ['get_*'],
        deny_tools: ['get_secret'],
        require_approval: 'destructive',
        trust_annotations: false,
        pin: 'block',
      },
    ],
  })
  t.equal(toolbox.mcps[1]?.headers?.['X-Api-Key'], '123', 'a value of a header is a text')
})

t.test('an address and a command may be as long as in the API', async (t) => {
  const command = `/opt/${'a'.repeat(4091)}`
  const url = `https://mcp.test/${'a'.repeat(8175)}`
  const mcps = (more = '') => `
toolbox:
  mcps:
    - {name: a, transport: stdio, mode: strict, command: ${command + more}}
    - {name: b, transport: sse, mode: strict, url: ${url + more}}`
  t.match(load({}, mcps()).config.toolbox.mcps, [{ command }, { url }])
  t.match(problems({}, mcps('a')), [{ path: 'toolbox.mcps[0].command' }, { path: 'toolbox.mcps[1].url' }])
})

t.test('each fault of a toolbox is a problem at its path', async (t) => {
  const mcp = (fields: string, mode = ', mode: strict') => `toolbox: {mcps: [{name: web${mode}, ${fields}}]}`
  const http = 'transport: sse, url: "http://127.0.0.1:9"'
  const cases: [string, string, RegExp | string][] = [
    [
      mcp(http, ', mode: dynamic'),
      'toolbox.mcps[0].default_tool_config',
      "MCP server 'web' is configured with mode='dynamic' but missing required field 'default_tool_config'",
    ],
    [mcp('transport: stdio'), 'toolbox.mcps[0].command', /required/],
    [mcp('transport: stdio, command: x, url: y'), 'toolbox.mcps[0].url', /does not belong/],
    [mcp('transport: stdio, command: x, headers: {a: b}'), 'toolbox.mcps[0].headers', /does not belong/],
    [mcp('transport: sse'), 'toolbox.mcps[0].url', /required/],
    [mcp('transport: sse, url: "ftp://x"'), 'toolbox.mcps[0].url', /http/],
    [mcp(`${http}, command: x`), 'toolbox.mcps[0].command', /does not belong/],
    [mcp(`${http}, args: [x]`), 'toolbox.mcps[0].args', /does not belong/],
    [mcp(`${http}, env: {A: b}`), 'toolbox.mcps[0].env', /does not belong/],
    [mcp(`${http}, headers: {"a b": c}`), 'toolbox.mcps[0].headers.a b', /legal HTTP header/],
    [mcp(`${http}, headers: {a: "b\\nc"}`), 'toolbox.mcps[0].headers.a', /legal HTTP header/],
    [mcp(`${http}, headers: {Accept: x}`), 'toolbox.mcps[0].headers.Accept', /for the connection alone/],
    [mcp('transport: stdio, command: x, env: {"1A": b}'), 'toolbox.mcps[0].env.1A', /legal variable/],
    [mcp(`${http}, nope: 1`), 'toolbox.mcps[0].nope', /not a known field/],
    [mcp(`${http}}, {name: web, mode: strict, ${http}`), 'toolbox.mcps[1].name', /'web' is configured twice/],
    [mcp(http, ''), 'toolbox.mcps[0].mode', /is required/],
    [mcp(http, ', mode: '), 'toolbox.mcps[0].mode', /is required/],
    [mcp(http, ', mode: loose'), 'toolbox.mcps[0].mode', /must be one of: strict, dynamic/],
    [mcp('transport: sse, url: "http://u@h/x"'), 'toolbox.mcps[0].url', /user name or password/],
    [mcp('transport: sse, url: web'), 'toolbox.mcps[0].url', /http or https URL/],
    [
      mcp(`${http}, default_tool_config: {timeout: 30}`),
      'toolbox.mcps[0].default_tool_config.timeout',
      /PT30S/,
    ],
    [mcp(`${http}, pin: ignore`), 'toolbox.mcps[0].pin', /warn, block/],
    [
      mcp(`${http}, default_tool_config: {max_instances: 0}`),
      'toolbox.mcps[0].default_tool_config.max_instances',
      /1 or more/,
    ],
    [
      mcp(`${http}, default_tool_config: {timeout: PT0S}`),
      'toolbox.mcps[0].default_tool_config.timeout',
      /./,
    ],
    ['toolbox: {max_concurrent: -1}', 'toolbox.max_concurrent', /1 or more/],
    ['toolbox: {tools: [{name: a, max_instances: 0}]}', 'toolbox.tools[0].max_instances', /1 or more/],
    ['toolbox: {tools: [{name: a, max_instances: 1.5}]}', 'toolbox.tools[0].max_instances', /whole number/],
    ['toolbox: {tools: [{name: a, timeout: PT-5S}]}', 'toolbox.tools[0].timeout', /ISO 8601/],
    [
      'toolbox: {tools: [{name: a, require_approval: sometimes}]}',
      'toolbox.tools[0].require_approval',
      /never, always/,
    ],
    ['ledger_retention: soon', 'ledger_retention', /ISO 8601/],
    ['ledger_retention: P1Y', 'ledger_retention', /years or months/],
    ['approval_seconds: 0', 'approval_seconds', /from 1 to/],
    ['toolbox: {tools: [{name: a}, {name: a}]}', 'toolbox.tools[1].name', /twice/],
    ['toolbox: {tools: [{name: a, timeout: P1M}]}', 'toolbox.tools[0].timeout', /years or months/],
    ['toolbox: {tools: [{name: a, timeout: PT0S}]}', 'toolbox.tools[0].timeout', /longer than zero/],
    ['toolbox: {tools: [{name: a, timeout: P25D}]}', 'toolbox.tools[0].timeout', /at most 24 days/],
    ['toolbox: {tools: [{max_instances: 1}]}', 'toolbox.tools[0].name', /required/],
    ['providers: {acme: {}}', 'providers.acme', /not a known field/],
    ['providers: {openai: {oauth: {headers: {"a:": b}}}}', 'providers.openai.oauth.headers.a:', /header/],
    ['limits: {concurrent_turns: many}', 'limits.concurrent_turns', /whole number/],
    ['limits: {concurrent: 1}', 'limits.concurrent', /not a known field/],
  ]
  for (const [yaml, path, problem] of cases) t.match(problems({}, yaml), [{ path, problem }], yaml)
  t.match(problems({}, mcp(http, ''))[0]?.remedy, /Strict allows .* dynamic, with default_tool_config, takes/)
  t.match(problems({}, mcp(`${http}, command: x`)), [{ remedy: 'Leave it out' }])
  const stray = problems({}, 'toolbox: {mcps: [web, docs]}').map(({ path }) => path)
  t.same(stray, ['toolbox.mcps[0]', 'toolbox.mcps[1]'], 'what is no server lacks no mode and no name')
})

t.test(
  'a number or truth value keeps its spelling in a field for text, and must be whole in one for a whole number',
  async (t) => {
    const numbers =
      '{A: 2.0, B: 0012, C: 12345678901234567890, D: 1e5, E: 7, F: "08", G: , H: True, I: FALSE, J: true}'
    const yaml = `admin_key: 0012345678901234567890
providers: {anthropic: {oauth: {headers: {X-Debug: True}}}}
toolbox:
  mcps: [{name: a, transport: stdio, command: x, mode: strict, env: ${numbers}, args: [--api, 1.10, True], trust_annotations: True}]`
    const { config } = load({}, yaml)
    t.match(config, {
      adminKey: '0012345678901234567890',
      loginExtras: { anthropic: { headers: { 'x-debug': 'True' } } },
    })
    t.match(config.toolbox.mcps[0], { args: ['--api', '1.10', 'True'], trust_annotations: true })
    const env = {
      A: '2.0',
      B: '0012',
      C: '12345678901234567890',
      D: '1e5',
      E: '7',
      F: '08',
      H: 'True',
      I: 'FALSE',
      J: 'true',
    }
    t.same(config.toolbox.mcps[0]?.env, env)
    const variable = { BATON__TOOLBOX__MCPS__0__ARGS: '[--api, 2.0, True]' }
    t.same(load(variable, yaml).config.toolbox.mcps[0]?.args, ['--api', '2.0', 'True'])
    t.match(problems({}, 'toolbox: {max_concurrent: 5.0}'), [{ problem: /whole number/ }])
  },
)

t.test('any value of the file can be overridden by its path', async (t) => {
  const env = {
    BATON__TOOLBOX__MCPS__0__ENV__TOKEN: '0012',
    BATON__TOOLBOX__MCPS__0__ENV__EXTRA: 'a: b',
    BATON__TOOLBOX__MCPS__0__ENV__SSH_KEY: '-----BEGIN\nEND-----\n',
    // With the line break of a Kubernetes Secret that was made by `echo … | base64`
    BATON__TOOLBOX__MCPS__1__HEADERS__X_API_KEY: 'Bearer x: y\r\n',
    BATON__TOOLBOX__MCPS__1__MODE: 'strict',
    BATON__TOOLBOX__MCPS__1__ALLOW_TOOLS: '[one, two]',
    BATON__TOOLBOX__MCPS__1__DENY_TOOLS: 'three, four',
    BATON__TOOLBOX__MCPS__1__TRUST_ANNOTATIONS: 'true',
    BATON__TOOLBOX__MCPS__1__DEFAULT_TOOL_CONFIG__MAX_INSTANCES: '9',
    BATON__TOOLBOX__TOOLS__10__NAME: 'eleventh',
    BATON__TOOLBOX__TOOLS__9__NAME: 'tenth',
    ...Object.fromEntries([2, 3, 4, 5, 6, 7, 8].map((i) => [`BATON__TOOLBOX__TOOLS__${i}__NAME`, `t${i}`])),
    BATON__LIMITS__IDLE_TIMEOUT: 'PT7S',
    BATON__PROVIDERS__ANTHROPIC__OAUTH__SYSTEM_BLOCKS__0: 'You are: Baton',
    BATON__PROVIDERS__ANTHROPIC__OAUTH__HEADERS__X_TEAM: 'research',
    BATON__PORT: '4321',
  }
  const { config, warnings } = load(env, MCPS)
  t.same(warnings, [])
  t.match(config, {
    port: 4321,
    limits: { idleTimeoutMs: 7000, concurrentTurns: 1000 },
    loginExtras: { anthropic: { system_blocks: ['You are: Baton'], headers: { x_team: 'research' } } },
    toolbox: {
      mcps: [
        { env: { TOKEN: '0012', EXTRA: 'a: b', SSH_KEY: '-----BEGIN\nEND-----\n', LOUD: 'true' } },
        {
          mode: 'strict',
          headers: { 'X-Api-Key': 'Bearer x: y' },
          allow_tools: ['one', 'two'],
          deny_tools: ['three', 'four'],
          trust_annotations: true,
          default_tool_config: { max_instances: 9 },
        },
      ],
    },
  })
  t.equal(config.toolbox.tools.length, 11)
  t.equal(config.toolbox.tools[10]?.name, 'eleventh')
  t.match(problems({ BATON__TOOLBOX__MCPS__1__MODE: 'fuzzy' }, MCPS), [
    { path: 'toolbox.mcps[1].mode (BATON__TOOLBOX__MCPS__1__MODE)', problem: /strict, dynamic/ },
  ])
  for (const name of ['MODE', 'HEADERS__AUTHORIZATION']) {
    const path = `BATON__TOOLBOX__MCPS__1__${name}`
    t.match(problems({ [path]: '"Bearer x"' }, MCPS), [
      { path, problem: /stands in quotes/, remedy: /env-file/ },
    ])
  }
  const [inList] = problems({ BATON__TOOLBOX__MCPS__1__DENY_TOOLS: 'a,,b' }, MCPS)
  t.equal(inList?.path, 'toolbox.mcps[1].deny_tools[1] (BATON__TOOLBOX__MCPS__1__DENY_TOOLS)')
  const [inMap] = problems({ BATON__TOOLBOX: '{tools: [{name: a, timeout: 5}]}' }, MCPS)
  t.equal(inMap?.path, 'toolbox.tools[0].timeout (BATON__TOOLBOX)')
  t.match(problems({ BATON__TOOLBOX__MCPS__5__MODE: 'strict' }, MCPS), [
    {
      path: 'BATON__TOOLBOX__MCPS__5__MODE',
      problem: /'5' does not fit in toolbox\.mcps/,
      remedy: /from 0, and it has 2$/,
    },
  ])
  t.match(problems({ BATON__TOOLBOX__MCP__0__MODE: 'strict' }, MCPS), [{ remedy: /tools, mcps, inspect/ }])
  t.match(problems({ BATON__TOOLBOX__MAX_CONCURRENT: '{' }, MCPS), [{ problem: /whole number/ }])
  t.match(problems({ BATON__TOOLBOX__MAX_CONCURRENT__X: '1' }, MCPS), [{ problem: /does not fit/ }])
})

t.test(
  'what other MCP clients fill in is refused with the variable that takes the value itself',
  async (t) => {
    const yaml = `
toolbox:
  mcps:
    - name: web
      transport: streamable_http
      url: "https://web.test/mcp?key=\${KEY}"
      mode: strict
      headers: { Authorization: "Bearer \${TOKEN}", X-Api-Key: $KEY, X-Price: $5, X-Name: a$NAME, X-Pass: $Pa55word }
    - name: files
      transport: stdio
      command: sh
      args: [-c, "echo \${HOME}"]
      mode: strict
      env: { TOKEN: "\${env:TOKEN}", FORMAT: "\${level} \${text}", PATH: "$HOME/bin:/usr/bin" }
providers: { openai: { oauth: { headers: { x-team: "\${TEAM}", x-price: $5 } } } }`
    t.match(problems({}, yaml), [
      { path: 'toolbox.mcps[0].url', remedy: 'Set BATON__TOOLBOX__MCPS__0__URL to the value itself' },
      {
        path: 'toolbox.mcps[0].headers.Authorization',
        problem: /placeholder/,
        remedy: /0__HEADERS__AUTHORIZATION /,
      },
      { path: 'toolbox.mcps[0].headers.X-Api-Key', remedy: /0__HEADERS__X_API_KEY / },
      { path: 'toolbox.mcps[1].env.TOKEN', remedy: /1__ENV__TOKEN / },
      {
        path: 'providers.openai.oauth.headers.x-team',
        remedy: /BATON__PROVIDERS__OPENAI__OAUTH__HEADERS__X_TEAM /,
      },
    ])
    const set = {
      BATON__TOOLBOX__MCPS__0__URL: 'https://web.test/mcp',
      BATON__TOOLBOX__MCPS__0__HEADERS__AUTHORIZATION: 'Bearer t',
      BATON__TOOLBOX__MCPS__0__HEADERS__X_API_KEY: 'k',
      BATON__TOOLBOX__MCPS__1__ENV__TOKEN: 't',
      BATON__PROVIDERS__OPENAI__OAUTH__HEADERS__X_TEAM: 'a',
    }
    const { toolbox, loginExtras } = load(set, yaml).config
    t.match(toolbox.mcps[0]?.headers, { Authorization: 'Bearer t', 'X-Api-Key': 'k' })
    t.match(loginExtras.openai?.headers, { 'x-team': 'a', 'x-price': '$5' })
  },
)

t.test('whoever writes a map or a text for a list of the toolbox is shown an item of it', (t) => {
  t.match(problems({}, 'toolbox: {mcps: {docs: {}}}'), [{ path: 'toolbox.mcps', remedy: /- name: docs/ }])
  t.match(problems({}, 'toolbox: {mcps: [docs]}'), [{ path: 'toolbox.mcps[0]', remedy: /- name: docs/ }])
  t.match(problems({}, 'toolbox: {tools: [a.b]}'), [
    { path: 'toolbox.tools[0]', remedy: /- name: server.tool/ },
  ])
  t.end()
})

t.test('a list in a variable is written in YAML or with commas', async (t) => {
  const name = 'BATON__TOOLBOX__MCPS__1__DENY_TOOLS'
  const listOf = (text: string) => load({ [name]: text }, MCPS).config.toolbox.mcps[1]?.deny_tools
  t.strictSame(listOf('["*_delete", old_*]'), ['*_delete', 'old_*'])
  t.strictSame(
    listOf('*_delete, old_*'),
    ['*_delete', 'old_*'],
    'a pattern that begins with a star is no alias of YAML',
  )
  t.strictSame(listOf('@admin'), ['@admin'])
  t.strictSame(listOf('"*_delete"'), ['*_delete'], 'a value may have the quotes that an env file keeps')
  t.strictSame(listOf("'[one, two]'"), ['one', 'two'])
  t.strictSame(
    listOf('!one, &two, three #3'),
    ['!one', '&two', 'three #3'],
    'other signs of YAML are text, too',
  )
  for (const unfit of ['[one, !two]', '[one, two', '"one", "two"', '{one']) {
    t.match(problems({ [name]: unfit }, MCPS), [{ problem: /a list/ }], unfit)
  }
})
