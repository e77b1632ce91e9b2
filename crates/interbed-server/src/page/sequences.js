// The queues: requests that run, wait, or are elsewhere.

import { OWNERS } from './blocks.js';
import { count, element, plural, say } from './format.js';

const ROWS_MAX = 12;
const SAID = {
  running: 'runs', long: 'runs, longer than memory', fetching: 'its KV is read from disk', arriving: 'comes back',
  leaving: 'leaves', swapped: 'swapped out', waiting: 'waits',
};

export class Sequences {
  #rows = new Map();
  #selected = null;

  /** `onSelect(number)` gets the number of the sequence whose blocks are to stand out, or null. */
  constructor(state, onSelect) {
    this.state = state;
    this.onSelect = onSelect;
    this.queues = document.getElementById('queues');
    this.root = document.getElementById('sequences');
    const head = element('tr', {}, ...['Request', 'State', 'Tokens', 'Blocks'].map((name) =>
      element('th', { scope: 'col' }, name)));
    this.body = element('tbody');
    this.table = element('table', {}, element('thead', {}, head), this.body);
    this.more = element('p', { className: 'note' });
    this.empty = element('p', { className: 'empty' },
      'No request at the moment. Send one with the chat, or by the API.');
    this.root.append(this.table, this.more, this.empty);
  }

  tell() {
    const { sequences, figures } = this.state;
    if (!figures) return;
    const shown = sequences.slice(0, ROWS_MAX);
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
    const all = figures.running + figures.waiting + figures.swapped;
    this.table.hidden = !shown.length;
    this.empty.hidden = shown.length > 0;
    this.more.hidden = all <= shown.length;
    say(this.more, `and ${count(all - shown.length)} more`);
    say(this.queues, `${count(figures.running)} running, ${count(figures.waiting)} waiting, ` +
      `${count(figures.swapped)} swapped out; ${plural(figures.finished, 'request')} answered.`);
  }

  #row(sequence, longest) {
    let row = this.#rows.get(sequence.id);
    if (!row) {
      row = { swatch: element('i'), bars: {}, state: element('td'), text: element('span'), blocks: element('td') };
      row.button = element('button', { type: 'button', title: 'Show its blocks' }, row.swatch, count(sequence.id));
      row.button.setAttribute('aria-pressed', 'false');
      row.button.addEventListener('click', () => this.#select(this.#selected === sequence.id ? null : sequence.id));
      const meter = element('div', { className: 'meter' });
      for (const kind of ['computed', 'pending', 'generated']) {
        row.bars[kind] = element('div', { className: kind });
        meter.append(row.bars[kind]);
      }
      const cells = [element('td', {}, row.button), row.state, element('td', {}, meter, row.text), row.blocks];
      row.node = element('tr', {}, ...cells);
      this.#rows.set(sequence.id, row);
    }
    const { number, place, prompt, computed, generated, blocks, below } = sequence;
    const colour = blocks ? `swatch block-own owner-${number % OWNERS}` : 'swatch block-free';
    if (row.swatch.className !== colour) row.swatch.className = colour;
    say(row.state, SAID[place] ?? place);
    const done = Math.min(computed, prompt);
    const sizes = { computed: done, pending: prompt - done, generated };
    for (const [kind, bar] of Object.entries(row.bars)) {
      bar.style.width = `${((100 * sizes[kind]) / longest).toFixed(1)}%`;
    }
    say(row.text, generated ? `${count(prompt)} + ${count(generated)}` : `${count(computed)} of ${count(prompt)}`);
    say(row.blocks, below ? `${count(blocks)}, ${count(below)} on disk` : count(blocks));
    return row;
  }

  #select(id) {
    this.#selected = id;
    for (const [other, row] of this.#rows) row.button.setAttribute('aria-pressed', String(other === id));
    const sequence = this.state.sequences.find((sequence) => sequence.id === id);
    this.onSelect(sequence ? sequence.number : null);
  }
}
