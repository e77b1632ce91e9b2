// Numbers as people read them.

const UNITS = ['B', 'KB', 'MB', 'GB', 'TB'];

/** Bytes in powers of 1000, three digits. */
export function bytes(count) {
  let unit = 0;
  while (count >= 999.5 && unit < UNITS.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${digits(count)} ${UNITS[unit]}`;
}

/** A number with three significant digits, or all digits of a large one. */
export function digits(number) {
  if (number >= 100 || Number.isInteger(number)) return count(Math.round(number));
  return number.toFixed(number >= 10 ? 1 : 2);
}

/** The share of the memory of KV and states that requests use. */
export function kvInUse({ used, block_bytes: each, tails, bytes: all }) {
  return (used * each + tails.used) / Math.max(1, all);
}

export function count(number) {
  return number.toLocaleString('en-US');
}

export function percent(share) {
  return share == null ? '–' : `${Math.round(100 * share)} %`;
}

export function seconds(time) {
  if (time >= 100) return `${count(Math.round(time))} s`;
  return time >= 1 ? `${time.toFixed(1)} s` : `${Math.round(1000 * time)} ms`;
}

/** Seconds, or more than those of a minute as {@link span} has it. */
export function duration(time) {
  return time < 60 ? seconds(time) : span(time);
}

/** A long time: "42 s", "3 min 12 s", "5 h 20 min", "2 d 3 h". */
export function span(time) {
  const [s, min, h, d] = [time % 60, (time / 60) % 60, (time / 3600) % 24, time / 86_400].map(Math.floor);
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${min} min`;
  return min ? `${min} min ${s} s` : `${s} s`;
}

/** "1 block", "2 blocks". */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
}

/** An element of a page with this text, or these children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Sets a text where it has changed, so that nothing else is laid out again. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Like `say`; options and commands in the text look like code, and do not break at the end of a line. */
export function advise(node, text) {
  if (node.textContent === text) return;
  const parts = text.split(/(--[a-z][a-z-]*|interbed (?:serve|pull NAME))/);
  node.replaceChildren(...parts.map((part, index) => (index % 2 ? element('code', {}, part) : part)));
}
