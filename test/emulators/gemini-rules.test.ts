/** The rules of the wire page (wire/gemini.md 3 to 6), each enforced by a refusal; gemini-tools.test.ts has those of tools. */
import type { Part } from '@google/genai'
import t from 'tap'
import { DAMAGED, PNG, pdfOf } from './bytes.ts'
import { declare, emulate, hi, post, READ, type Refused, refuses, user } from './gemini-requests.ts'

const call = (name: string, extra: object = {}) => ({ functionCall: { name, args: {}, id: 'c1' }, ...extra })
const response = (name: string, extra: object = {}) => ({
  functionResponse: { name, id: 'c1', response: { output: 'x' }, ...extra },
})
const SIGNED = { thoughtSignature: 'skip_thought_signature_validator' }
const exchange = (modelParts: unknown[], userParts: unknown[]) => ({
  contents: [user('hi'), { role: 'model', parts: modelParts }, { role: 'user', parts: userParts }],
})
const thinking = (thinkingConfig: object) => ({ ...hi, generationConfig: { thinkingConfig } })

const REFUSED: readonly Refused[] = [
  ['an unknown field', { ...hi, stream: true }, /Unknown name "stream": Cannot find field/],
  [
    'an unknown field of a part',
    { contents: [{ role: 'user', parts: [{ txt: 'hi' }] }] },
    /Unknown name "txt" at 'contents\[0\]\.parts\[0\]'/,
  ],
  ['a field in both spellings', { ...hi, generationConfig: { topP: 1, top_p: 1 } }, /set in two spellings/],
  [
    'declarations that differ between the spellings',
    { ...hi, tools: [{ functionDeclarations: [READ], function_declarations: [] }] },
    /set in two spellings/,
  ],
  ['a bare system text', { ...hi, systemInstruction: 'Be short.' }, /Invalid value at 'system_instruction'/],
  ['a list where one value belongs', { ...hi, toolConfig: [] }, /Proto field is not repeating/],
  ['a wrong type', { ...hi, generationConfig: { temperature: 'hot' } }, /TYPE_FLOAT/],
  [
    'data that is no base64',
    { contents: [{ parts: [{ inlineData: { mimeType: 'image/png', data: '!' } }] }] },
    /TYPE_BYTES/,
  ],
  ['half of a character', { contents: [user('\ud83d')] }, /Invalid JSON payload/],
  [
    'an image type that is not supported',
    { contents: [{ parts: [{ inlineData: { mimeType: 'image/gif', data: 'aaaa' } }] }] },
    /Unsupported MIME type: image\/gif/,
  ],
  [
    'image data that is no image',
    { contents: [{ parts: [{ inlineData: { mimeType: 'image/png', data: 'aaaa' } }] }] },
    /Unable to process input image/,
  ],
  [
    'an image that is damaged',
    { contents: [{ parts: [{ inlineData: { mimeType: 'image/png', data: DAMAGED } }] }] },
    /Provided image is not valid/,
  ],
  [
    'an image URI that leads nowhere',
    { contents: [{ parts: [{ fileData: { mimeType: 'image/png', fileUri: 'https://a.invalid/b.png' } }] }] },
    /Cannot fetch content/,
  ],
  [
    'PDF data that is no PDF',
    { contents: [{ parts: [{ inlineData: { mimeType: 'application/pdf', data: 'aaaa' } }] }] },
    /no pages/,
  ],
  [
    'a PDF with too many pages',
    { contents: [{ parts: [{ inlineData: { mimeType: 'application/pdf', data: pdfOf(1001) } }] }] },
    /contains 1001 pages which exceeds the supported page limit of 1000/,
  ],
  [
    'maxOutputTokens above the limit',
    { ...hi, generationConfig: { maxOutputTokens: 65_537 } },
    /supported range is from 1/,
  ],
  [
    'maxOutputTokens above an older model’s limit',
    { ...hi, generationConfig: { maxOutputTokens: 8_193 } },
    /supported range is from 1/,
    'gemini-2.0-flash',
  ],
  ['an unknown mode', { ...hi, toolConfig: { functionCallingConfig: { mode: 'SOME' } } }, /TYPE_ENUM/],
  ['no contents', { contents: [] }, /contents is not specified/],
  ['no parts', { contents: [{ role: 'user', parts: [] }] }, /parts must not be empty/],
  ['a part without data', { contents: [{ parts: [{}] }] }, /required oneof field 'data'/],
  ['an empty text', { contents: [{ parts: [{ text: '' }] }] }, /required oneof field 'data'/],
  [
    'a part with two kinds of data',
    { contents: [{ parts: [{ text: 'a', inlineData: { mimeType: 'image/png', data: 'aaaa' } }] }] },
    /oneof field 'data' is already set/,
  ],
  ['an unknown role', { contents: [{ role: 'tool', parts: [{ text: 'a' }] }] }, /valid role: user, model/],
  [
    'a model turn first',
    { contents: [{ role: 'model', parts: [{ text: 'a' }] }, user('hi')] },
    /start with a user/,
  ],
  [
    'a model turn last',
    { contents: [user('hi'), { role: 'model', parts: [{ text: 'a' }] }] },
    /ending with a model turn/,
  ],
  [
    'a call turn after a model turn',
    {
      contents: [
        user('hi'),
        { role: 'model', parts: [{ text: 'a' }] },
        ...exchange([call('f', SIGNED)], [response('f')]).contents.slice(1),
      ],
    },
    /function call turn comes immediately after/,
  ],
  [
    'a call in a user turn',
    {
      contents: [
        { role: 'user', parts: [call('f', SIGNED)] },
        { role: 'user', parts: [response('f')] },
      ],
    },
    /call turn comes immediately/,
  ],
  [
    'a call that is the last',
    { contents: [user('hi'), { role: 'model', parts: [call('f', SIGNED)] }] },
    /number of function response parts/,
  ],
  [
    'a response in a model turn',
    {
      contents: [
        user('hi'),
        { role: 'model', parts: [call('f', SIGNED)] },
        { role: 'model', parts: [response('f')] },
      ],
    },
    /call turn comes immediately/,
  ],
  [
    'a response to nothing',
    { contents: [{ role: 'user', parts: [response('f')] }] },
    /response turn comes immediately/,
  ],
  [
    'text between call and response',
    {
      contents: [
        user('hi'),
        { role: 'model', parts: [call('f', SIGNED)] },
        user('wait'),
        { role: 'user', parts: [response('f')] },
      ],
    },
    /number of function response parts|response turn comes immediately/,
  ],
  [
    'a response after text',
    exchange([call('f', SIGNED)], [{ text: 'a' }, response('f')]),
    /response turn comes immediately/,
  ],
  [
    'text after a response',
    exchange([call('f', SIGNED)], [response('f'), { text: 'a' }]),
    /ending with a model turn/,
  ],
  [
    'media after a response',
    exchange([call('f')], [response('f'), { inlineData: { mimeType: 'audio/wav', data: 'aaaa' } }]),
    /ending with a model turn/,
    'gemini-2.5-flash',
  ],
  [
    'a call without its response',
    exchange([call('f', SIGNED)], [{ text: 'a' }]),
    /number of function response parts is equal/,
  ],
  [
    'responses in two contents',
    {
      contents: [
        ...exchange([call('f', SIGNED), call('g')], [response('f')]).contents,
        { role: 'user', parts: [response('g')] },
      ],
    },
    /number of function response parts is equal/,
  ],
  ['a response with another name', exchange([call('f', SIGNED)], [response('g')]), /name and id/],
  ['a response with another id', exchange([call('f', SIGNED)], [response('f', { id: 'c2' })]), /name and id/],
  [
    'responses out of order',
    exchange([call('f', SIGNED), call('g')], [response('g'), response('f')]),
    /name and id/,
  ],
  [
    'a response that is no object',
    exchange([call('f', SIGNED)], [response('f', { response: 'x' })]),
    /Struct/,
  ],
  [
    'a reference within a response',
    exchange([call('f', SIGNED)], [response('f', { response: { a: [{ $ref: '#/$defs/b' }] } })]),
    /referenced name `#\/\$defs\/b`.*does not match to a display_name/,
  ],
  [
    'a response without a response',
    exchange([call('f', SIGNED)], [{ functionResponse: { name: 'f' } }]),
    /is required/,
  ],
  [
    'sound within a response',
    exchange(
      [call('f', SIGNED)],
      [response('f', { parts: [{ inlineData: { mimeType: 'audio/wav', data: 'aaaa' } }] })],
    ),
    /Unsupported MIME type/,
  ],
  [
    'a gif within a response',
    exchange(
      [call('f', SIGNED)],
      [response('f', { parts: [{ inlineData: { mimeType: 'image/gif', data: 'aaaa' } }] })],
    ),
    /Unsupported MIME type in a function response: image\/gif/,
  ],
  [
    'media within a response for an older model',
    exchange(
      [call('f')],
      [response('f', { parts: [{ inlineData: { mimeType: 'image/png', data: 'aaaa' } }] })],
    ),
    /Multimodal function responses are not supported/,
    'gemini-2.5-flash',
  ],
  [
    'an unsigned call of the open turn',
    exchange([call('f')], [response('f')]),
    /missing a thought_signature.*`default_api:f` , position 2/,
  ],
  [
    'unsigned words for a model that wants them signed',
    exchange([{ text: 'a', ...SIGNED }, { text: 'b' }], [{ text: 'c' }]),
    /Text part is missing a thought_signature in content position 2, part position 2/,
    'gemini-3-pro-image',
  ],
  [
    'a foreign signature',
    exchange([call('f', { thoughtSignature: 'Zm9yZWlnbg==' })], [response('f')]),
    /Thought signature is not valid/,
  ],
  ['a call without a name', exchange([call('', SIGNED)], [response('')]), /call\.name: Name cannot be empty/],
  [
    'a response without a name',
    exchange([call('f', SIGNED)], [response('')]),
    /contents\[2\]\.parts\[0\]\.function_response\.name: Name cannot be empty/,
  ],
  [
    'a call name that begins with a digit',
    exchange([call('9lives', SIGNED)], [response('9lives')]),
    /Invalid function name/,
  ],
  ['a system text without parts', { ...hi, systemInstruction: { parts: [] } }, /parts must not be empty/],
  [
    'data that is cut in the middle',
    { contents: [{ parts: [{ inlineData: { mimeType: 'audio/wav', data: 'aaaaa' } }] }] },
    /TYPE_BYTES/,
  ],
  [
    'media without data',
    { contents: [{ parts: [{ inlineData: { mimeType: 'audio/wav' } }] }] },
    /inline_data\.data: is required/,
  ],
  [
    'a thinking budget and a thinking level',
    thinking({ thinkingBudget: 1024, thinkingLevel: 'LOW' }),
    /only one of thinking budget/,
  ],
  ['a level that the model lacks', thinking({ thinkingLevel: 'MINIMAL' }), /MINIMAL is not supported/],
  [
    'a budget of 0 for 3.5 Flash-Lite',
    thinking({ thinkingBudget: 0 }),
    /^Request contains an invalid argument\.$/,
    'gemini-3.5-flash-lite',
  ],
  ['a budget for Gemma', thinking({ thinkingBudget: 512 }), /budget is not supported/, 'gemma-4-31b-it'],
  ['a level for 2.5', thinking({ thinkingLevel: 'LOW' }), /LOW is not supported/, 'gemini-2.5-flash'],
  ['a budget of 0 for 2.5 pro', thinking({ thinkingBudget: 0 }), /budget 0 is invalid/, 'gemini-2.5-pro'],
  [
    'a budget that is too small',
    thinking({ thinkingBudget: 100 }),
    /between 512 and 24576/,
    'gemini-2.5-flash-lite',
  ],
  [
    'thoughts without thinking',
    thinking({ thinkingBudget: 0, includeThoughts: true }),
    /include_thoughts is only enabled/,
    'gemini-2.5-flash',
  ],
  [
    'thoughts of a model that thinks only with a budget',
    thinking({ includeThoughts: true }),
    /include_thoughts is only enabled/,
    'gemini-2.5-flash-lite',
  ],
  ['thinking for 2.0', thinking({ includeThoughts: true }), /Thinking is not supported/, 'gemini-2.0-flash'],
  ['two candidates', { ...hi, generationConfig: { candidateCount: 2 } }, /Multiple candidates/],
  ['sampling for 3.8', { ...hi, generationConfig: { topP: 0.5 } }, /topP is not supported/],
]

t.test('a request that breaks a rule of the wire page is refused in Google’s words', async (t) => {
  const emulator = await emulate(t)
  await refuses(t, emulator, REFUSED)
  const lost = await post(`${emulator.publicBaseUrl}/models/gemini-0:streamGenerateContent?alt=sse`, hi)
  t.match(
    [lost.status, await lost.json()],
    [404, { error: { status: 'NOT_FOUND', message: /is not found/ } }],
  )
  const two = { ...hi, generationConfig: { candidateCount: 2 } }
  const older = await post(`${emulator.publicBaseUrl}/models/gemini-2.5-flash:generateContent`, two)
  t.equal(older.status, 200, 'an older model gives several candidates')
})

t.test('snake_case, both spellings of equal declarations and the dummy signature are accepted', async (t) => {
  const emulator = await emulate(t)
  const { contents } = exchange([call('files__read', SIGNED)], [response('files__read')])
  const body = {
    contents: [...contents, user('go on')],
    tools: [{ functionDeclarations: [READ], function_declarations: [READ] }],
    generation_config: { max_output_tokens: 5, thinking_config: { thinking_level: 'LOW' } },
    system_instruction: { parts: [{ text: 'Be short.' }] },
  }
  const passed = await post(`${emulator.publicBaseUrl}/models/gemini-3.8-flash:generateContent`, body)
  t.equal(passed.status, 200, await passed.text())
})

t.test('base64 is read in either alphabet, padded or not, and however long a picture is', async (t) => {
  const emulator = await emulate(t)
  const url = `${emulator.publicBaseUrl}/models/gemini-3.8-flash:generateContent`
  const sent = async (data: string) => {
    const contents = [{ role: 'user', parts: [{ inlineData: { mimeType: 'audio/wav', data } }] }]
    const answer = await post(url, { contents })
    return `${answer.status} ${(await answer.text()).includes('TYPE_BYTES')}`
  }
  for (const data of ['AA', 'AA=', 'AA==', 'AAA', 'AAA=', 'AAAA', '+/+/', '-_-_', PNG])
    t.equal(await sent(data), '200 false', data)
  for (const data of ['A', 'AAAAA', 'AAAA=', '=', 'AA AA', 'A=AA', 'AA==='])
    t.equal(await sent(data), '400 true', data)
  t.equal(await sent('A'.repeat(29 * 2 ** 20)), '200 false', '22 MiB')
})

t.test('a signature is valid only for its model and on the part with which it came', async (t) => {
  const emulator = await emulate(t)
  const url = (model: string) => `${emulator.publicBaseUrl}/models/${model}:generateContent`
  const first = await post(url('gemini-3.8-flash'), {
    ...declare(READ),
    contents: [user('call files__read with {"path":"a"}')],
  })
  const { candidates } = (await first.json()) as { candidates: { content: { parts: Part[] } }[] }
  const [part] = candidates[0]?.content.parts ?? []
  const again = (modelPart: Part | undefined) =>
    exchange([modelPart], [{ functionResponse: { name: 'files__read', response: { output: 'x' } } }])
  t.equal((await post(url('gemini-3.8-flash'), again(part))).status, 200)
  t.equal((await post(url('gemini-3.7-flash'), again(part))).status, 400)
  const moved = { ...part, functionCall: { ...part?.functionCall, args: { path: 'other' } } }
  t.equal((await post(url('gemini-3.8-flash'), again(moved))).status, 400)
  t.equal(
    (await post(url('gemini-2.5-flash'), again(part))).status,
    200,
    'older models do not check signatures',
  )

  const said = await post(url('gemini-3.8-flash'), { contents: [user('say so')] })
  const { candidates: answers } = (await said.json()) as { candidates: { content: { parts: Part[] } }[] }
  const signed = answers[0]?.content.parts.at(-1)
  const more = (text: string) => ({
    contents: [user('say so'), { role: 'model', parts: [{ ...signed, text }] }, user('more')],
  })
  t.match(signed, { text: '', thoughtSignature: /./ })
  t.equal((await post(url('gemini-3.8-flash'), more(''))).status, 200)
  t.equal(
    (await post(url('gemini-3.8-flash'), more('so'))).status,
    400,
    'the signed part was merged with another part',
  )
})
