// The window of weights: where each piece is, layer by layer.

import { bytes, element, say } from './format.js';
import { mix, palette, Pixels } from './paint.js';

const ABSENT = 0, LOADING = 1, PRESENT = 2, IN_USE = 3, STAYS = 8;
const HEIGHT = 190, HIGHER = 300, WIDEST = 64;

export class WeightMap {
  #drawn = new Uint8Array();

  constructor(state) {
    this.state = state;
    this.section = document.getElementById('weights');
    this.pixels = new Pixels(document.getElementById('weights-map'));
    this.caption = document.getElementById('weights-caption');
    this.streamed = this.caption.textContent.replace(/\s+/g, ' ');
    this.parts = {};
    for (const [kind, label] of [['device', 'stays on the device'], ['stays', 'stays in memory'],
      ['ready', 'passing through'], ['loading', 'being read'], ['use', 'in use'], ['disk', 'on disk']]) {
      this.parts[kind] = element('b');
      const swatch = element('i', { className: `swatch unit-${kind}` });
      document.getElementById('weights-legend').append(element('li', {}, swatch, this.parts[kind], ` ${label}`));
    }
    this.recolour();
  }

  recolour() {
    this.colours = palette(['paper', 'faint', 'weights', 'weights-pass', 'weights-device', 'motion', 'ink']);
    this.columns = null;
  }

  draw() {
    const { groups, units } = this.state;
    this.section.classList.toggle('resident', !groups);
    if (!groups || !units.length) return;
    const width = Math.floor(this.pixels.canvas.clientWidth * devicePixelRatio);
    if (width !== this.pixels.width || units.length !== this.#drawn.length || !this.columns) {
      this.#lay(width);
      this.#drawn = new Uint8Array(units.length).fill(255);
    }
    let unit = 0;
    for (const { x, width: wide, count } of this.columns) {
      for (let index = 0; index < count; index += 1, unit += 1) {
        if (units[unit] !== this.#drawn[unit]) {
          this.#drawn[unit] = units[unit];
          this.#piece(x, wide, index, count, units[unit]);
        }
      }
    }
    this.pixels.flush();
  }

  #lay(width) {
    const groups = this.state.groups.filter((group) => group.units > 0);
    const pitch = Math.min(width / groups.length, WIDEST * devicePixelRatio);
    const gap = pitch > 6 ? Math.max(1, Math.round(1.5 * devicePixelRatio)) : 0;
    this.pixels.resize(width, Math.round((innerWidth < 1920 ? HEIGHT : HIGHER) * devicePixelRatio), this.colours.paper);
    this.columns = groups.map((group, index) => {
      const x = Math.floor(index * pitch);
      return { x, width: Math.max(1, Math.floor((index + 1) * pitch) - x - gap), count: group.units };
    });
  }

  #piece(x, width, index, count, code) {
    const { pixels, colours } = this;
    // A layer's first piece is on top.
    const top = Math.floor((index * pixels.height) / count), bottom = Math.floor(((index + 1) * pixels.height) / count);
    const height = Math.max(1, bottom - top - (bottom - top > 4 ? 1 : 0));
    const kind = kindOf(code);
    if (kind === 'loading') {
      pixels.stripes(x, top, width, height, colours.motion, mix(colours.paper, colours.motion, 0.35), 2, 4);
      return;
    }
    const colour = {
      device: colours['weights-device'], stays: colours.weights, ready: colours['weights-pass'], use: colours.ink,
      disk: colours.faint,
    }[kind];
    pixels.fill(x, top, width, height, colour);
  }

  /** Now and then: the numbers below the map, and what it says to those who cannot see it. */
  tell() {
    const { groups, units, figures } = this.state;
    if (!groups) {
      if (figures) {
        say(this.caption, `All weights, ${bytes(figures.weights_bytes)}, are in memory and stay there: nothing is ` +
          'read from disk while the model computes. With less memory, they would stream.');
      }
      return;
    }
    const sums = placed(groups, units);
    for (const [kind, node] of Object.entries(this.parts)) {
      say(node, bytes(sums[kind]));
      node.parentElement.hidden = kind === 'device' && !figures?.device;
    }
    say(this.caption, this.streamed);
    const told = Object.entries(sums).filter(([, sum]) => sum).map(([kind, sum]) => `${bytes(sum)} ${SAID[kind]}`);
    this.pixels.canvas.setAttribute('aria-label', `Weights: ${told.join(', ')}`);
  }
}

const SAID = {
  device: 'stay on the device', stays: 'stay in memory', ready: 'are passing through', loading: 'are being read',
  use: 'are in use', disk: 'are on disk',
};

/** What a piece looks like: where it is for good, else what happens to it. */
function kindOf(code) {
  const host = code & 7, device = (code >> 4) & 7;
  if (host === IN_USE || device === IN_USE) return 'use';
  if ((code >> 4) & STAYS && device === PRESENT) return 'device';
  if (code & STAYS && host === PRESENT) return 'stays';
  if (host === LOADING || device === LOADING) return 'loading';
  if (host !== ABSENT || device !== ABSENT) return 'ready';
  return 'disk';
}

/** Bytes of weights by their kind. What is in use and stays counts as staying. */
export function placed(groups, units) {
  const sums = { device: 0, stays: 0, ready: 0, loading: 0, use: 0, disk: 0 };
  let unit = 0;
  for (const { units: count, bytes } of groups) {
    for (let index = 0; index < count; index += 1, unit += 1) sums[kindOf(units[unit] ?? 0)] += bytes / count;
  }
  return sums;
}

/** Bytes of weights by the tier that holds them. */
export function tiers(groups, units) {
  const sums = { device: 0, deviceStays: 0, host: 0, hostStays: 0, disk: 0 };
  let unit = 0;
  for (const { units: count, bytes } of groups) {
    for (let index = 0; index < count; index += 1, unit += 1) {
      const code = units[unit] ?? 0, each = bytes / count;
      const host = (code & 7) !== ABSENT, device = ((code >> 4) & 7) !== ABSENT;
      if (device) sums[(code >> 4) & STAYS ? 'deviceStays' : 'device'] += each;
      if (host) sums[code & STAYS ? 'hostStays' : 'host'] += each;
      if (!host && !device) sums.disk += each;
    }
  }
  return sums;
}
