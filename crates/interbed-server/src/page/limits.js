// What limits the server now, in words.

import { bytes, digits, kvInUse, percent, plural } from './format.js';

/** Passes that wait for weights for more of their time than this are limited by it. */
const STALLED = 0.25;
/** So full, KV has no room for another request. */
const FULL = 0.9;

/** `{what, why}`: what more of would make it faster, and how that is seen. Null while nothing is asked for. */
export function limit(state) {
  const { figures, sequences } = state;
  const { kv, stream, device, running, waiting, swapped } = figures;
  if (!running && !waiting && !swapped) return null;
  const stall = state.stall(10);
  if (stall !== null && stall > STALLED) return stalled(state, stall);
  const queued = waiting + swapped;
  const used = kvInUse(kv);
  if (queued && used > FULL) {
    return {
      what: 'Limited by memory for KV.',
      why: `${plural(queued, 'request')} ${queued === 1 ? 'waits' : 'wait'} until others are done: ${percent(used)} of ${
        bytes(kv.bytes)} is in use. More --memory lets more run at a time.`,
    };
  }
  const fetching = sequences.filter(({ place }) => place === 'fetching').length;
  if (fetching && fetching === sequences.length) {
    return { what: 'Limited by the disk of KV.', why: `${plural(fetching, 'request')} waits for what it kept there.` };
  }
  const place = device ? 'the device' : 'the processor';
  const prompts = state.rate(5, (f) => f.prompt_tokens);
  const isPrefill = sequences.some(({ prompt, computed, generated }) => !generated && computed < prompt);
  const why = stream
    ? `Weights come in time: passes wait ${stall === null ? 'none' : `only ${percent(stall)}`} of their time for them.`
    : 'All weights are in memory.';
  const doing = isPrefill ? `It computes prompts${prompts > 1 ? `, ${digits(prompts)} tokens a second` : ''}. ` : '';
  return { what: `Limited by ${place}.`, why: doing + why };
}

function stalled(state, stall) {
  const { device, stream } = state.figures;
  const read = state.rate(10, (f) => f.stream.bytes_read), most = stream.disk_bytes_per_s;
  if (device && stream.waits_for_copies && read < 1e6) {
    return {
      what: 'Limited by the link to the device.',
      why: `Passes wait ${percent(stall)} of their time for weights to be copied. More --gpu-memory keeps more there.`,
    };
  }
  const rate = most ? `${digits(read / 1e9)} of the ${digits(most / 1e9)} GB/s measured` : `${digits(read / 1e9)} GB/s`;
  return {
    what: 'Limited by the disk.',
    why: `Passes wait ${percent(stall)} of their time for weights, which come at ${rate}. More --memory keeps more ` +
      'of them, and more requests at a time share each pass.',
  };
}
