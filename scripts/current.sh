# Run by npm start and its like before what they run: builds what npm's `ignore-scripts` kept from being built, with no
# dist/ yet or with one that is older than the compiler. A file, since not every runner of scripts gives them the
# package's `config` (node --run does not).
[ -f dist/src/server.js ] && [ ! node_modules/.bin/tsc -nt dist/pglite-template.json ] || npm run -s prepare >&2
