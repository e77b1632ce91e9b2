// The figures, each with its last minutes.

import { count, digits, duration, element, percent, plural, say, seconds, span } from './format.js';

const WIDTH = 180, HEIGHT = 44, FIRST = 60;
const SVG = 'http://www.w3.org/2000/svg';

/** Which figures there are: their name, their value now, what stands below it, and what is drawn. */
const FIGURES = [
  { name: 'Tokens/s', of: 'gen', now: (last) => digits(last.gen),
    note: (f) => `${count(f.generated_tokens)} in all` },
  { name: 'Prompt tokens/s', of: 'prompt', now: (last) => digits(last.prompt),
    note: (f) => `${count(f.prompt_tokens)} in all` },
  { name: 'Requests', of: 'running', now: (last) => count(last.running),
    note: (f) => `${count(f.waiting)} waiting${f.swapped ? `, ${count(f.swapped)} swapped` : ''}` },
  { name: 'Found in cache', of: 'hits', most: 1, now: (last) => percent(last.hits), note: found },
  { name: 'Of disk’s bound', of: 'bound', most: 1, when: (f) => f.stream, now: (last) => percent(last.bound),
    note: ({ stream: { disk_bytes_per_s: rate } }) => (rate ? `of ${digits(rate / 1e9)} GB/s` : 'not measured') },
  { name: 'Passes stalled', of: 'stall', most: 1, when: (f) => f.stream, now: (last) => percent(last.stall),
    note: () => 'waiting for weights' },
  { name: 'KV memory in use', of: 'used', most: 1, when: (f) => !f.stream, now: (last) => percent(last.used),
    note: (f) => `${count(f.kv.cached)} blocks cached` },
  { name: 'Passes/s', of: 'steps', when: (f) => !f.stream, now: (last) => digits(last.steps),
    note: (f) => `${count(f.steps)} in all` },
];

/** What the cache has found since the start, and the time that it saved where that was measured. */
function found(figures, { promptTokenSeconds: each }) {
  const { cached_tokens: cached } = figures;
  if (!cached) return 'none so far';
  return each ? `saved ${duration(cached * each)}` : `${count(cached)} tokens in all`;
}

export class Charts {
  constructor(state) {
    this.state = state;
    const root = document.getElementById('figures');
    this.figures = FIGURES.map((figure) => {
      const svg = document.createElementNS(SVG, 'svg');
      svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
      svg.setAttribute('preserveAspectRatio', 'none');
      svg.setAttribute('aria-hidden', 'true');
      const [area, line] = ['area', 'line'].map((kind) => {
        const path = document.createElementNS(SVG, 'path');
        path.setAttribute('class', kind);
        svg.append(path);
        return path;
      });
      const axis = { top: element('span', { className: 'top' }), begin: element('span') };
      const plot = element('div', { className: 'plot', 'aria-hidden': 'true' }, svg, axis.top,
        element('div', { className: 'times' }, axis.begin, element('span', {}, 'now')));
      const [now, note] = [element('p', { className: 'now' }, '–'), element('p', { className: 'note' })];
      const node = element('div', { className: 'figure' }, element('h3', {}, figure.name), now, plot, note);
      root.append(node);
      return { ...figure, node, now, tellNow: figure.now, note, tellNote: figure.note, area, line, axis };
    });
  }

  /** Once a second. */
  tell() {
    const { figures, history } = this.state;
    const last = history.at(-1);
    for (const figure of this.figures) {
      figure.node.hidden = figure.when ? !figure.when(figures) : false;
      if (figure.node.hidden) continue;
      say(figure.note, figure.tellNote(figures, this.state));
      if (!last) continue;
      say(figure.now, figure.tellNow(last));
      const values = history.map((sample) => sample[figure.of]);
      const top = Math.max(figure.most ?? round(Math.max(...values)), ...values);
      say(figure.axis.top, figure.most ? percent(top) : count(top));
      say(figure.axis.begin, `${span(Math.max(FIRST, values.length)).replace(/ 0 s$/, '')} ago`);
      const [line, area] = paths(values, top);
      figure.line.setAttribute('d', line);
      figure.area.setAttribute('d', area);
    }
  }
}

/** The end of an axis: a round number that is no less. */
function round(most) {
  const ten = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
  return ten * [1, 2, 5, 10].find((step) => step * ten >= most);
}

/** A line through the values, newest on the right, and the area below it. Values that are null leave gaps. At first a
    minute is shown, then as much as is known. */
function paths(values, top) {
  const shown = Math.max(FIRST, values.length);
  const x = (index) => (((shown - values.length + index) * WIDTH) / (shown - 1)).toFixed(1);
  const y = (value) => (HEIGHT - 1.5 - (value / top) * (HEIGHT - 3)).toFixed(1);
  let line = '', area = '', open = null;
  values.forEach((value, index) => {
    if (value !== null) {
      line += `${open === null ? 'M' : 'L'}${x(index)} ${y(value)}`;
      open ??= index;
    }
    const next = values[index + 1];
    if (open !== null && (next === null || next === undefined)) {
      const end = value === null ? index - 1 : index;
      const part = line.slice(line.lastIndexOf('M'));
      area += `${part}L${x(end)} ${HEIGHT}L${x(open)} ${HEIGHT}Z`;
      open = null;
    }
  });
  return [line, area];
}

/** What is waited for, and what making room has cost. */
export class Waits {
  constructor(state) {
    this.state = state;
    this.root = document.getElementById('waits');
    this.entries = new Map();
  }

  tell() {
    const { figures } = this.state;
    if (!figures) return;
    const told = waits(figures, this.state);
    for (const [name, text] of told) {
      if (!this.entries.has(name)) {
        const value = element('dd');
        this.entries.set(name, value);
        this.root.append(element('div', {}, element('dt', {}, name), value));
      }
      say(this.entries.get(name), text);
    }
  }
}

function waits({ stream, device, disk, remote, kv, preemptions, preemptions_swap: swapped }, state) {
  const list = [];
  if (stream) {
    list.push(['Passes waited for the disk', seconds(stream.stall_s)]);
    list.push(['They computed for', seconds(stream.compute_s)]);
    const read = state.rate(10, (f) => f.stream.bytes_read);
    list.push(['Read from disk now', `${digits(read / 1e6)} MB/s`]);
  }
  if (device) {
    list.push(['Waits for copies to the device', count(stream?.waits_for_copies ?? 0)]);
    list.push(['Waits for room on the link', count(device.waits_for_room)]);
  }
  if (disk) {
    list.push(['Requests waited for KV on disk', seconds(disk.fetch_s)]);
    list.push(['Tokens that came from there', count(disk.fetched_tokens)]);
    if (disk.frame_s) list.push(['Passes waited for KV beyond memory', seconds(disk.frame_s)]);
  }
  if (remote) {
    const state = remote.paused ? ' (left alone: it has failed)' : '';
    list.push(['Requests waited for the shared store', `${seconds(remote.fetch_s)}${state}`]);
    list.push(['Tokens that came from there', `${count(remote.fetched_tokens)} of ${count(remote.asked_tokens)}`]);
  }
  const out = swapped ? `, ${count(swapped)} swapped out` : '';
  list.push(['Requests made room', `${plural(preemptions, 'time')}${out}`]);
  list.push(['Cached blocks given up', count(kv.evictions)]);
  list.push(['Equal blocks merged', count(kv.merged)]);
  list.push(['Shared blocks copied on write', count(kv.copied)]);
  return list;
}
