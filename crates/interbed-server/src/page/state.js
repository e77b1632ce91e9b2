// What the server has told: the present state, and rates over the last minutes.

import { kvInUse } from './format.js';

const SAMPLES_MAX = 40;
const HISTORY_MAX = 180;

/** Codes of blocks: see `BlockUse::code`. */
export const WITHDRAWN = 0, FREE = 1, CACHED = 2, MOVING = 3, FIRST_OWNER = 4, SHARED = 0x8000;

export class State {
  about = null;
  groups = null;
  figures = null;
  sequences = [];
  /** The requests that ended last, the newest first, and what a token of a prompt takes. */
  recent = { requests: [], prompt_token_s: null };
  blocks = new Uint16Array();
  units = new Uint8Array();
  /** Once a second: `{gen, prompt, running, waiting, hits, bound, stall, used, steps}`. */
  history = [];
  #samples = [];
  #at = 0;
  #received = 0;

  apply(name, data) {
    // A server that was started anew counts from the beginning.
    if (data.at < this.#at) this.#samples = [];
    this.#at = data.at;
    this.#received = performance.now();
    if (name === 'whole') {
      this.about = data.about;
      this.groups = data.groups?.map(([name, units, bytes]) => ({ name, units, bytes })) ?? null;
      this.blocks = listed(data.blocks, Uint16Array);
      this.units = listed(data.units, Uint8Array);
    } else {
      change(this.blocks, data.blocks);
      change(this.units, data.units);
    }
    if (data.figures) this.figures = data.figures;
    if (data.recent) this.recent = data.recent;
    if (data.sequences) {
      this.sequences = data.sequences.map(
        ([id, number, place, prompt, computed, generated, blocks, below, cached = 0, key = null, came = null]) =>
          ({ id, number, place, prompt, computed, generated, blocks, below, cached, key, came }));
    }
  }

  /** Seconds since the server was started. */
  get now() {
    return this.#at + (performance.now() - this.#received) / 1000;
  }

  /** What a token of a prompt takes, as far as it was measured; else null. */
  get promptTokenSeconds() {
    return this.recent.prompt_token_s;
  }

  /** Tokens a second of a sequence, over the last seconds; null before there are two looks at it. */
  speed({ id, generated }) {
    const last = this.#samples.at(-1);
    const first = this.#samples.find((sample) => sample.at >= this.now - 5 && sample.generated.get(id) > 0);
    if (!first || last.at - first.at < 1) return null;
    return (generated - first.generated.get(id)) / (this.now - first.at);
  }

  /** Once a second: adds to the history what the last seconds came to. */
  tick() {
    if (!this.figures) return;
    const at = this.now;
    const generated = new Map(this.sequences.map((sequence) => [sequence.id, sequence.generated]));
    this.#samples.push({ at, figures: this.figures, generated });
    if (this.#samples.length > SAMPLES_MAX) this.#samples.shift();
    const { kv } = this.figures;
    this.history.push({
      gen: this.rate(5, (f) => f.generated_tokens),
      prompt: this.rate(5, (f) => f.prompt_tokens),
      steps: this.rate(5, (f) => f.steps),
      running: this.figures.running,
      waiting: this.figures.waiting + this.figures.swapped,
      hits: this.share(10, (f) => f.cached_tokens, (f) => f.prompt_tokens),
      bound: this.bound(10),
      stall: this.stall(10),
      used: kvInUse(kv),
    });
    if (this.history.length > HISTORY_MAX) this.history.shift();
  }

  /** How much `of(figures)` grew in each of the last `within` seconds. */
  rate(within, of) {
    const [first, last] = this.#ends(within);
    return last && last.at > first.at ? (of(last.figures) - of(first.figures)) / (last.at - first.at) : 0;
  }

  /** By how much one grew for each unit that the other grew; null where it did not. */
  share(within, part, whole) {
    const [first, last] = this.#ends(within);
    if (!last) return null;
    const all = whole(last.figures) - whole(first.figures);
    return all > 0 ? (part(last.figures) - part(first.figures)) / all : null;
  }

  /** The part of their time that passes waited for weights. */
  stall(within) {
    if (!this.figures?.stream) return null;
    return this.share(within, (f) => f.stream.stall_s, (f) => f.stream.stall_s + f.stream.compute_s);
  }

  /** The time that the disk needs for the bytes of the passes, over what they took. */
  bound(within) {
    const rate = this.figures?.stream?.disk_bytes_per_s;
    if (!rate) return null;
    const time = (f) => f.stream.stall_s + f.stream.compute_s;
    const share = this.share(within, (f) => f.stream.bytes_read, time);
    return share === null ? null : share / rate;
  }

  #ends(within) {
    const last = this.#samples.at(-1);
    return [last && this.#samples.find((sample) => sample.at >= last.at - within - 0.5), last];
  }
}

/** A list from runs: `[length, code, …]`. */
function listed(runs, Kind) {
  let length = 0;
  for (let i = 0; i < runs.length; i += 2) length += runs[i];
  const list = new Kind(length);
  let at = 0;
  for (let i = 0; i < runs.length; i += 2) {
    list.fill(runs[i + 1], at, at + runs[i]);
    at += runs[i];
  }
  return list;
}

/** Changes a list as told: `[skip, length, code, …]`. */
function change(list, changes = []) {
  let at = 0;
  for (let i = 0; i < changes.length; i += 3) {
    at += changes[i];
    list.fill(changes[i + 2], at, at + changes[i + 1]);
    at += changes[i + 1];
  }
}
