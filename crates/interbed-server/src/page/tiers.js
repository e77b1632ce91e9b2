// The tiers of memory, each as a layer that is filled.

import { bytes, element, say } from './format.js';
import { tiers as placed } from './weights.js';

const TRADED = 'Weights and KV trade memory: when requests need room, weights give theirs up; when those are done, ' +
  'weights come back.';
const DIVIDED = 'Each layer is larger and slower than the one above it. What does not fit into one goes to the next.';

export class Tiers {
  #rows = new Map();

  constructor(state) {
    this.state = state;
    this.root = document.getElementById('tiers');
    this.caption = document.getElementById('tiers-caption');
  }

  tell() {
    const { about, figures, groups, units } = this.state;
    if (!figures) return;
    const weights = groups ? placed(groups, units) : null;
    say(this.caption, groups && !figures.device ? TRADED : DIVIDED);
    const names = [];
    for (const tier of tiersOf(about, figures, groups, weights)) {
      names.push(tier.name);
      this.#row(tier);
    }
    for (const [name, row] of this.#rows) row.root.hidden = !names.includes(name);
  }

  #row({ name, note, parts, total }) {
    let row = this.#rows.get(name);
    if (!row) {
      row = { parts: new Map() };
      row.bar = element('div', { className: 'bar' });
      row.legend = element('ul', { className: 'legend' });
      row.note = element('span');
      row.root = element('div', { className: 'tier' }, element('h3', {}, name, ' ', row.note), row.bar, row.legend);
      this.#rows.set(name, row);
      this.root.append(row.root);
    }
    say(row.note, note);
    const sum = Math.max(total, parts.reduce((sum, part) => sum + part.size, 0), 1);
    for (const { kind, label, size } of parts) {
      let part = row.parts.get(kind);
      if (!part) {
        part = { piece: element('div', { className: `piece ${kind}` }), size: element('b') };
        part.entry = element('li', {}, element('i', { className: `swatch ${kind}` }), part.size, ` ${label}`);
        row.bar.append(part.piece);
        row.legend.append(part.entry);
        row.parts.set(kind, part);
      }
      const share = `${((100 * size) / sum).toFixed(2)}%`;
      if (part.share !== share) {
        part.share = share;
        part.piece.style.width = share;
      }
      part.piece.hidden = part.entry.hidden = size <= 0;
      say(part.size, bytes(size));
    }
  }
}

/** What weights and KV do not take, by what it is for. */
function reserved(entries) {
  const sums = { 'for-program': 0, 'for-passes': 0, 'for-requests': 0 };
  for (const [name, size] of entries) {
    const kind = { weights: null, 'KV blocks': null, scratch: 'for-passes', requests: 'for-requests' }[name];
    if (kind !== null) sums[kind ?? 'for-program'] += size;
  }
  const labels = { 'for-program': 'the program', 'for-passes': 'passes', 'for-requests': 'requests' };
  return Object.entries(sums).map(([kind, size]) => ({ kind, label: labels[kind], size }));
}

function tiersOf(about, figures, groups, weights) {
  const { device, kv, disk, swap, stream } = figures;
  const blocks = (count) => count * kv.block_bytes;
  const ofKv = [
    { kind: 'kv-used', label: 'KV in use', size: blocks(kv.used) },
    { kind: 'kv-cached', label: 'KV cached', size: blocks(kv.cached) },
    { kind: 'tails-used', label: 'windows and states in use', size: kv.tails.used },
    { kind: 'tails-cached', label: 'windows and states cached', size: kv.tails.cached },
    { kind: 'kv-free', label: 'KV free', size: blocks(kv.free) + kv.tails.free },
  ];
  const tiers = [];
  if (device) {
    const parts = [
      { kind: 'w-device', label: 'weights that stay', size: weights ? weights.deviceStays : figures.weights_bytes },
      { kind: 'w-pass', label: 'weights that pass through', size: weights?.device ?? 0 },
      ...ofKv,
    ];
    const known = parts.reduce((sum, part) => sum + part.size, 0);
    parts.push({ kind: 'rest', label: 'other', size: Math.max(0, device.used - known) });
    tiers.push({ name: 'Device', note: `${device.name}, ${bytes(device.budget)}`, parts, total: device.budget });
  }
  const held = device ? (weights ? weights.host + weights.hostStays : 0) : figures.weights_bytes;
  const stays = weights ? Math.min(held, weights.hostStays) : held;
  const parts = [
    { kind: 'w-stay', label: 'weights that stay', size: stays },
    { kind: 'w-pass', label: 'weights that pass through', size: held - stays },
    ...(device ? [] : ofKv),
  ];
  parts.push(...reserved(about.reserved ?? []));
  const all = parts.reduce((sum, part) => sum + part.size, 0);
  parts.push({ kind: 'unused', label: 'unused', size: about.memory_bytes - all });
  const total = Math.max(about.memory_bytes, all);
  tiers.push({ name: 'Host', note: `memory, ${bytes(total)}`, parts, total });
  const below = [];
  if (stream) below.push({ kind: 'w-disk', label: 'weights that are read in each pass', size: weights?.disk ?? 0 });
  if (disk) {
    below.push({ kind: 'kv-used', label: 'KV kept', size: disk.used });
    below.push({ kind: 'kv-free', label: 'room for KV', size: Math.max(0, disk.total - disk.used) });
  }
  if (swap) {
    below.push({ kind: 'kv-cached', label: 'KV swapped out', size: blocks(swap.used) });
    below.push({ kind: 'rest', label: 'swap space', size: blocks(swap.total - swap.used) });
  }
  const note = below.length ? '' : 'nothing is needed from it';
  tiers.push({ name: 'Disk', note, parts: below, total: 0 });
  return tiers;
}
