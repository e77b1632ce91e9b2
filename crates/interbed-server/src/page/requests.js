// The requests: those that run, wait or are elsewhere, and those that ended last.

import { OWNERS } from './blocks.js';
import { count, digits, duration, element, plural, say, span } from './format.js';

const ROWS_MAX = 12, ENDED_MAX = 8;
const SAID = {
  running: 'runs', long: 'runs, longer than memory', fetching: 'its KV is read from disk', arriving: 'comes back',
  leaving: 'leaves', swapped: 'swapped out', waiting: 'waits',
};
const ENDED = { stop: 'done', length: 'as long as allowed', abort: 'broken off', error: 'failed' };

export class Requests {
  #rows = new Map();
  #ended = [];
  #selected = null;

  /** `onSelect(number)` gets the number of the sequence whose blocks are to stand out, or null. */
  constructor(state, onSelect) {
    this.state = state;
    this.onSelect = onSelect;
    this.queues = document.getElementById('queues');
    const heads = ['Request', 'Key', 'State', 'Tokens', 'Tokens/s', 'Time'].map((name) =>
      element('th', { scope: 'col' }, name));
    this.body = element('tbody');
    this.past = element('tbody', { className: 'ended' });
    this.more = element('td', { colSpan: heads.length });
    this.table = element('table', {}, element('thead', {}, element('tr', {}, ...heads)), this.body,
      element('tbody', {}, element('tr', {}, this.more)), this.past);
    const scroll = element('div', { className: 'scroll' }, this.table);
    document.getElementById('requests').append(scroll);
  }

  tell() {
    const { sequences, figures, recent } = this.state;
    if (!figures) return;
    const shown = sequences.slice(0, ROWS_MAX), ended = recent.requests.slice(0, ENDED_MAX);
    const longest = Math.max(...shown.map(({ prompt, generated }) => prompt + generated));
    const ids = new Set(shown.map((sequence) => sequence.id));
    for (const [id, row] of this.#rows) {
      if (!ids.has(id)) {
        row.node.remove();
        this.#rows.delete(id);
      }
    }
    shown.forEach((sequence, index) => {
      const row = this.#row(sequence, longest);
      if (this.body.children[index] !== row.node) this.body.insertBefore(row.node, this.body.children[index] ?? null);
    });
    if (this.#selected !== null && !sequences.some((sequence) => sequence.id === this.#selected)) this.#select(null);
    ended.forEach((request, index) => this.#end(request, index));
    this.#ended.forEach((row, index) => { row.node.hidden = index >= ended.length; });
    const all = figures.running + figures.waiting + figures.swapped;
    this.table.hidden = !shown.length && !ended.length;
    const isKeyed = [...shown, ...ended].some(({ key }) => key);
    this.table.classList.toggle('keyless', !isKeyed);
    this.more.hidden = all <= shown.length;
    say(this.more, `and ${count(all - shown.length)} more`);
    say(this.queues, `${count(figures.running)} running, ${count(figures.waiting)} waiting, ` +
      `${count(figures.swapped)} swapped out; ${plural(figures.finished, 'request')} answered`);
  }

  #row(sequence, longest) {
    let row = this.#rows.get(sequence.id);
    if (!row) {
      row = { swatch: element('i'), bars: {}, key: element('td'), state: element('td'), text: element('span'),
        found: element('span', { className: 'found' }), speed: element('td'), time: element('td') };
      row.button = element('button', { type: 'button', title: 'Show its blocks' }, row.swatch, count(sequence.id));
      row.button.setAttribute('aria-pressed', 'false');
      row.button.addEventListener('click', () => this.#select(this.#selected === sequence.id ? null : sequence.id));
      const meter = element('div', { className: 'meter' });
      for (const kind of ['found', 'computed', 'pending', 'generated']) {
        row.bars[kind] = element('div', { className: `part-${kind}` });
        meter.append(row.bars[kind]);
      }
      const tokens = element('td', {}, element('div', { className: 'tokens' }, meter, row.text, row.found));
      row.node = element('tr', {}, element('td', {}, row.button), row.key, row.state, tokens, row.speed, row.time);
      this.#rows.set(sequence.id, row);
    }
    const { number, place, prompt, computed, generated, blocks, below, cached, key, came } = sequence;
    const colour = blocks ? `swatch block-own owner-${number % OWNERS}` : 'swatch block-free';
    if (row.swatch.className !== colour) row.swatch.className = colour;
    say(row.key, key ?? '–');
    const isReading = place === 'running' && !generated;
    const onDisk = below ? `, ${count(below)} blocks on disk` : '';
    say(row.state, (isReading ? 'reads its prompt' : SAID[place] ?? place) + onDisk);
    const found = Math.min(cached, prompt), done = Math.max(found, Math.min(computed, prompt));
    const sizes = { found, computed: done - found, pending: prompt - done, generated };
    for (const [kind, bar] of Object.entries(row.bars)) {
      bar.style.width = `${((100 * sizes[kind]) / longest).toFixed(1)}%`;
    }
    say(row.text, generated ? `${count(prompt)} + ${count(generated)}` : `${count(done)} of ${count(prompt)}`);
    say(row.found, this.#found(cached));
    const speed = this.state.speed(sequence);
    say(row.speed, speed === null ? '–' : digits(speed));
    say(row.time, came === null ? '–' : duration(this.state.now - came));
    return row;
  }

  /** A request that has ended, in this row of them. */
  #end({ at, took, key, prompt, cached, generated, decoding, finish, status }, index) {
    let row = this.#ended[index];
    if (!row) {
      const cell = () => element('td');
      row = { ago: cell(), key: cell(), state: cell(), text: element('span'), found: element('span',
        { className: 'found' }), speed: cell(), time: cell() };
      row.node = element('tr', {}, row.ago, row.key, row.state, element('td', {}, element('div',
        { className: 'tokens' }, row.text, row.found)), row.speed,
        row.time);
      this.#ended[index] = row;
      this.past.append(row.node);
    }
    const ago = this.state.now - at;
    say(row.ago, ago < 2 ? 'just now' : `${ago < 60 ? span(ago) : span(ago - (ago % 60)).replace(/ 0 s$/, '')} ago`);
    say(row.key, key ?? '–');
    say(row.state, status >= 400 ? `refused, ${status}` : ENDED[finish] ?? 'ended');
    say(row.text, `${count(prompt)} + ${count(generated)}`);
    say(row.found, this.#found(cached));
    say(row.speed, decoding > 0 && generated > 1 ? digits((generated - 1) / decoding) : '–');
    say(row.time, duration(took));
  }

  /** What the cache has spared: prompt tokens that were found, times what one takes where it is computed. */
  #found(cached) {
    if (!cached) return '';
    const each = this.state.promptTokenSeconds;
    return each ? `${count(cached)} found, saved ${duration(cached * each)}` : `${count(cached)} found`;
  }

  #select(id) {
    this.#selected = id;
    for (const [other, row] of this.#rows) row.button.setAttribute('aria-pressed', String(other === id));
    const sequence = this.state.sequences.find((sequence) => sequence.id === id);
    this.onSelect(sequence ? sequence.number : null);
  }
}
