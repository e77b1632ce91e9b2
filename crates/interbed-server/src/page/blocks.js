// The map of KV blocks: whose each is, what is shared, and what is cached. Free ones behind the last that has content
// are no cells, and all of them are a piece of the bar below it.

import { count, element, plural, say } from './format.js';
import { mix, palette, Pixels } from './paint.js';
import { CACHED, FIRST_OWNER, FREE, MOVING, SHARED, WITHDRAWN } from './state.js';

/** Colours for sequences: more of them look alike, and are told apart by pointing. */
export const OWNERS = 8;

const LARGEST = 20, HEIGHT = 320;

export class BlockMap {
  #drawn = new Uint16Array();
  #selected = null;
  #at = 0;

  constructor(state) {
    this.state = state;
    this.pixels = new Pixels(document.getElementById('blocks-map'));
    this.slider = document.getElementById('blocks-slider');
    this.told = document.getElementById('block-told');
    this.legend = document.getElementById('blocks-legend');
    this.bar = document.getElementById('blocks-bar');
    this.slider.addEventListener('keydown', (event) => this.#move(event));
    this.slider.addEventListener('pointermove', (event) => this.#point(event));
    this.slider.addEventListener('pointerdown', (event) => this.#point(event));
    this.#makeLegend();
    this.recolour();
  }

  recolour() {
    this.shown = 0;
    const names = ['paper', 'line', 'muted', 'faint', 'ink'];
    for (let i = 0; i < OWNERS; i += 1) names.push(`owner-${i}`);
    this.colours = palette(names);
    this.columns = 0;
  }

  /** Dims what others than this sequence hold alone; all are equal again without one. */
  select(number) {
    this.#selected = number;
    this.#drawn = new Uint16Array();
  }

  draw() {
    const { blocks } = this.state;
    const width = Math.floor(this.slider.clientWidth * devicePixelRatio);
    if (width !== this.pixels.width || blocks.length !== this.count || !this.columns || this.#outgrown(blocks)) {
      this.#lay(width, blocks);
    }
    if (this.#drawn.length !== this.shown) this.#drawn = new Uint16Array(this.shown).fill(0x7fff);
    const drawn = this.#drawn;
    for (let block = 0; block < drawn.length; block += 1) {
      if (blocks[block] !== drawn[block]) {
        drawn[block] = blocks[block];
        this.#cell(block, blocks[block]);
      }
    }
    this.pixels.flush();
  }

  /** Whether the map has too few rows for what has content, or rows for nothing. */
  #outgrown(blocks) {
    const end = endOf(blocks);
    return end > this.shown || (!end && this.shown > 0);
  }

  /** Chooses the largest cells with which the map of all blocks is not too high, and shows the rows with content. */
  #lay(width, blocks) {
    const { length } = blocks;
    const height = HEIGHT * devicePixelRatio;
    let cell = Math.round(LARGEST * devicePixelRatio);
    const rows = () => Math.ceil(length / Math.max(1, Math.floor(width / cell)));
    while (cell > 2 && rows() * cell > height) cell -= 1;
    this.cell = cell;
    this.gap = cell > 4 ? Math.max(1, Math.floor(devicePixelRatio)) : 0;
    this.columns = Math.max(1, Math.floor(width / cell));
    this.count = length;
    const shownRows = Math.ceil(endOf(blocks) / this.columns);
    this.shown = Math.min(length, shownRows * this.columns);
    this.#drawn = new Uint16Array();
    this.pixels.resize(width, Math.max(1, shownRows * cell), this.colours.paper);
    this.pixels.canvas.hidden = !shownRows;
    this.slider.setAttribute('aria-valuemax', Math.max(0, length - 1));
    this.#at = Math.min(this.#at, Math.max(0, length - 1));
  }

  #cell(block, code) {
    const { pixels, cell, colours } = this;
    const size = cell - this.gap;
    const x = (block % this.columns) * cell, y = Math.floor(block / this.columns) * cell;
    const owner = (code & ~SHARED) - FIRST_OWNER;
    if (code === WITHDRAWN) {
      pixels.stripes(x, y, cell, cell, colours.line, colours.paper, 1, 6);
      return;
    }
    if (code === FREE) {
      pixels.fill(x, y, size, size, colours.faint);
      return;
    }
    if (code === CACHED) {
      pixels.fill(x, y, size, size, size > 3 ? colours.muted : mix(colours.faint, colours.muted, 0.6));
      if (size > 3) pixels.fill(x + 1, y + 1, size - 2, size - 2, colours.paper);
      return;
    }
    if (code === MOVING) {
      pixels.stripes(x, y, size, size, colours.muted, colours.faint, 2, 4);
      return;
    }
    const shared = (code & SHARED) !== 0;
    let colour = colours[`owner-${owner % OWNERS}`];
    if (this.#selected !== null && !shared && owner !== this.#selected) colour = mix(colours.paper, colour, 0.22);
    pixels.fill(x, y, size, size, colour);
    if (shared) {
      const hole = Math.max(1, Math.round(size / 3)), from = (size - hole) >> 1;
      pixels.fill(x + from, y + from, hole, hole, size > 3 ? colours.paper : mix(colour, colours.ink, 0.6));
    }
  }

  /** Says what a block is. */
  #tell(block) {
    const code = this.state.blocks[block];
    if (code === undefined) return;
    this.#at = block;
    const text = `Block ${count(block)}: ${this.#what(code)}`;
    say(this.told, text);
    this.slider.setAttribute('aria-valuenow', block);
    this.slider.setAttribute('aria-valuetext', text);
  }

  #what(code) {
    switch (code) {
      case WITHDRAWN: return 'without memory, which weights have instead';
      case FREE: return 'free';
      case CACHED: return 'cached: its content is found by whoever begins alike';
      case MOVING: return 'on its way to or from disk or swap space';
    }
    const number = (code & ~SHARED) - FIRST_OWNER;
    const owner = this.state.sequences.find((sequence) => sequence.number === number && sequence.blocks > 0);
    const name = owner ? `request ${owner.id}` : 'a request';
    return code & SHARED ? `shared by ${name} and others` : `of ${name} alone`;
  }

  #point(event) {
    const box = this.pixels.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) * devicePixelRatio) / this.cell);
    const row = Math.floor(((event.clientY - box.top) * devicePixelRatio) / this.cell);
    if (column >= 0 && column < this.columns && row >= 0) this.#tell(row * this.columns + column);
  }

  #move(event) {
    const last = this.state.blocks.length - 1;
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns,
      PageUp: -10 * this.columns, PageDown: 10 * this.columns, Home: -last, End: last,
    };
    const step = steps[event.key];
    if (step === undefined || last < 0) return;
    event.preventDefault();
    this.#tell(Math.min(last, Math.max(0, this.#at + step)));
  }

  #makeLegend() {
    const entries = [['own', 'of one request'], ['shared', 'shared'], ['cached', 'cached'], ['free', 'free'],
      ['withdrawn', 'without memory: weights have it']];
    this.counts = {};
    this.pieces = {};
    for (const [kind, label] of entries) {
      this.counts[kind] = element('b');
      this.pieces[kind] = element('div', { className: `piece block-${kind}` });
      this.bar.append(this.pieces[kind]);
      const swatch = element('i', { className: `swatch block-${kind}` });
      this.legend.append(element('li', {}, swatch, this.counts[kind], ` ${label}`));
    }
  }

  /** Now and then: the numbers below the map. */
  tell() {
    const { blocks } = this.state;
    const counts = { own: 0, shared: 0, cached: 0, free: 0, withdrawn: 0 };
    for (const code of blocks) {
      if (code === FREE) counts.free += 1;
      else if (code === CACHED) counts.cached += 1;
      else if (code === WITHDRAWN) counts.withdrawn += 1;
      else if (code & SHARED) counts.shared += 1;
      else counts.own += 1;
    }
    for (const [kind, node] of Object.entries(this.counts)) {
      say(node, count(counts[kind]));
      node.parentElement.hidden = kind === 'withdrawn' && !counts.withdrawn;
      this.pieces[kind].hidden = !counts[kind];
      const share = `${((100 * counts[kind]) / Math.max(1, blocks.length)).toFixed(2)}%`;
      if (this.pieces[kind].style.width !== share) this.pieces[kind].style.width = share;
    }
    const { block_tokens: size } = this.state.about;
    this.told.hidden = !this.shown;
    say(document.getElementById('blocks-caption'),
      `A cell is a block of ${plural(size, 'token')}. Requests that begin alike share blocks; what they leave stays ` +
      'cached until its room is needed.');
  }
}

/** The end of the blocks that have content. */
function endOf(blocks) {
  let end = blocks.length;
  while (end > 0 && (blocks[end - 1] === FREE || blocks[end - 1] === WITHDRAWN)) end -= 1;
  return end;
}
