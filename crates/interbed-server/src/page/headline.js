// The fact that the page is about, and what the server is.

import { advise, bytes, count, element, say, span } from './format.js';
import { limit } from './limits.js';
import { lastMinute } from './rest.js';
import { tiers } from './weights.js';

export class Headline {
  #facts = new Map();

  constructor(state) {
    this.state = state;
    const get = (id) => document.getElementById(id);
    this.fact = get('fact');
    this.note = get('fact-note');
    this.list = get('facts');
    this.limit = { root: get('limit'), what: get('limit-what'), why: get('limit-why') };
  }

  tell() {
    const { about, figures, groups, units } = this.state;
    if (!figures) return;
    const weights = groups ? tiers(groups, units) : null;
    const model = about.model_bytes || weightBytes(groups) || figures.weights_bytes;
    const memory = figures.device?.budget ?? about.memory_bytes;
    const place = figures.device ? 'the device’s memory' : 'memory';
    const fact = memory ? `${bytes(model)} of model in ${bytes(memory)} of ${place}` : `${bytes(model)} of model`;
    if (this.fact.textContent !== fact) {
      this.fact.replaceChildren(...(memory ? [element('b', {}, bytes(model)), ' of model in ',
        element('b', {}, bytes(memory)), ` of ${place}`] : [fact]));
    }
    say(this.note, weights ? streamed(weights, model, memory)
      : 'All of it stays in memory: nothing is read from disk while the model computes.');
    const told = { Model: about.model, 'Computes on': figures.device?.name ?? processor(about.processor),
      Context: `${count(about.context)} tokens`, Version: `Interbed ${about.version}`, Up: span(this.state.now) };
    for (const [name, text] of Object.entries(told)) this.#tell(name, text);
    const now = limit(this.state);
    this.limit.root.hidden = false;
    say(this.limit.what, now?.what ?? 'At rest.');
    advise(this.limit.why, now?.why ?? lastMinute(this.state));
  }

  #tell(name, text) {
    if (!text) return;
    let value = this.#facts.get(name);
    if (!value) {
      value = element('dd');
      this.#facts.set(name, value);
      this.list.append(element('div', {}, element('dt', {}, name), value));
    }
    say(value, text);
  }
}

function weightBytes(groups) {
  return groups?.reduce((sum, group) => sum + group.bytes, 0);
}

function processor(told) {
  return told ? `the processor, ${told}` : 'the processor';
}

function streamed({ disk, host, hostStays, device, deviceStays }, model, memory) {
  const stays = hostStays + deviceStays, comes = disk + host + device;
  const larger = model > memory ? `The model is ${(model / memory).toFixed(1)} times as large as its memory. ` : '';
  return `${larger}${bytes(stays)} of weights stay in memory; ${bytes(comes)} pass through it, read from disk just ` +
    'before their turn.';
}
