// Runs Ollama's client for JavaScript against a server of several models at the URL given; ends at the first thing that
// is wrong. The folder given besides is the one that the client is installed in; NAME is a model beside the storyteller.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const [url, folder, name] = process.argv.slice(2);
const { Ollama } = createRequire(`${folder}/`)('ollama');
const client = new Ollama({ host: url });
const messages = [{ role: 'user', content: 'Tell me a story about a fox.' }];
const options = { num_predict: 16, seed: 7 };
const bare = (model) => model.replace(/:latest$/, '');

let last;
for await (const part of await client.pull({ model: name, stream: true })) last = part;
assert.equal(last.status, 'success');
const { models } = await client.list();
assert.deepEqual(models.map((model) => bare(model.model)).sort(), ['storyteller', name].sort());

for (let turn = 0; turn < 5; turn += 1) {
    for (const model of ['storyteller', name]) {
        const told = await client.chat({ model, messages, options });
        assert(told.done && told.model === model && told.eval_count === 16);
        assert.deepEqual((await client.ps()).models.map((present) => bare(present.model)), [model]);
    }
}
// A stream of one, while the other is asked for.
const stream = await client.generate({ model: name, prompt: 'Once', raw: true, stream: true, options });
const other = client.generate({ model: 'storyteller', prompt: 'Once', raw: true, options });
let parts = 0;
for await (const part of stream) parts += part.done ? 100 : 1;
assert(parts > 100);
assert((await other).done);
assert.equal((await client.generate({ model: 'storyteller', keep_alive: 0 })).done_reason, 'unload');
await assert.rejects(client.chat({ model: 'no-such', messages }), /not on this machine/);
await assert.rejects(client.pull({ model: 'org/none' }), /has no model/);
console.log("Ollama's client for JavaScript passed with several models");
