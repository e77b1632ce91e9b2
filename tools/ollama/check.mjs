// Runs Ollama's client for JavaScript against a server at the URL given; ends at the first thing that is wrong. The
// folder given besides is the one that the client is installed in.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const [url, folder] = process.argv.slice(2);
const { Ollama } = createRequire(`${folder}/`)('ollama');
const client = new Ollama({ host: url });
const messages = [{ role: 'user', content: 'Tell me a story about a fox.' }];
const options = { num_predict: 24, seed: 7 };

const { models } = await client.list();
const model = models[0].model;
assert.equal(model, 'storyteller:latest');
assert.equal((await client.ps()).models[0].digest, models[0].digest);
assert((await client.show({ model })).capabilities.includes('completion'));

const whole = await client.chat({ model, messages, options });
assert(whole.done && whole.done_reason === 'length' && whole.eval_count === 24);
let text = '';
let last;
for await (const part of await client.chat({ model, messages, options, stream: true })) {
    text += part.message.content;
    last = part;
}
assert.equal(text, whole.message.content);
assert(last.done && last.eval_duration > 0 && last.total_duration > 0);

const format = { type: 'object', properties: { legs: { type: 'integer' } }, required: ['legs'] };
const bound = await client.chat({ model, messages, options: { ...options, num_predict: 200 }, format });
if (bound.done_reason === 'stop') {
    assert(Number.isInteger(JSON.parse(bound.message.content).legs));
}
const raw = await client.generate({ model, prompt: 'Once upon a time', raw: true, options });
assert(raw.response.length > 0);
const tools = [{ type: 'function', function: { name: 'ls', parameters: { type: 'object', properties: {} } } }];
const called = { role: 'assistant', content: '', tool_calls: [{ function: { name: 'ls', arguments: {} } }] };
const result = { role: 'tool', tool_name: 'ls', content: 'a.txt' };
const told = await client.chat({ model, messages: [...messages, called, result], tools, options });
assert(told.prompt_eval_count > whole.prompt_eval_count);

const vectors = await client.embed({ model, input: ['A fox.', 'The sea.'] });
assert.equal(vectors.embeddings.length, 2);

// One that is given up leaves the server answering.
const long = await client.generate({ model, prompt: 'Once upon a time', raw: true, stream: true });
for await (const part of long) {
    assert(part.response !== undefined);
    long.abort();
    break;
}
await assert.rejects(client.chat({ model: 'no-such', messages }), /not served here/);
await assert.rejects(client.pull({ model: 'llama3.2' }), /interbed serve/);
assert((await client.chat({ model, messages, options })).done);
console.log("Ollama's client for JavaScript passed");
