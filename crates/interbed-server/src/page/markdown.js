// What models write, as elements: Markdown's usual part. Every text becomes a text node, so nothing that a model writes
// is ever read as HTML.

import { copyButton } from './copy.js';
import { element } from './format.js';

/** Shows a text that grows. Blocks that are as they were stay as they are. */
export class Markdown {
  #blocks = [];

  constructor(root) {
    this.root = root;
  }

  show(text) {
    const blocks = blocksOf(text);
    let same = 0;
    while (same < blocks.length && same < this.#blocks.length && blocks[same].key === this.#blocks[same].key) same += 1;
    for (const { node } of this.#blocks.splice(same)) node.remove();
    for (const block of blocks.slice(same)) {
      const node = block.make();
      this.root.append(node);
      this.#blocks.push({ key: block.key, node });
    }
  }
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** The blocks of a text: what each was made of, and how to make it. */
function blocksOf(text) {
  const lines = text.replace(/\r\n?/g, '\n').split('\n');
  const blocks = [];
  let at = 0;
  const block = (from, make) => blocks.push({ key: lines.slice(from, at).join('\n'), make });
  const takeWhile = (holds) => {
    const from = at;
    at += 1;
    while (at < lines.length && holds(lines[at])) at += 1;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const from = at, line = lines[at], fence = FENCE.exec(line), heading = HEADING.exec(line);
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      const end = new RegExp(`^ {0,3}\\${fence[1][0]}{${fence[1].length},}\\s*$`);
      const code = takeWhile((next) => !end.test(next)).slice(1);
      // A fence that is still open ends with the text.
      at += 1;
      block(from, () => codeBlock(code.join('\n'), fence[2]));
    } else if (heading) {
      at += 1;
      block(from, () => element(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2])));
    } else if (RULE.test(line)) {
      at += 1;
      block(from, () => element('hr'));
    } else if (QUOTE.test(line)) {
      const inner = takeWhile((next) => QUOTE.test(next)).map((next) => next.replace(QUOTE, '')).join('\n');
      block(from, () => element('blockquote', {}, ...blocksOf(inner).map((part) => part.make())));
    } else if (ITEM.test(line)) {
      const items = takeWhile((next) => ITEM.test(next) || /^\s{2,}\S/.test(next));
      block(from, () => list(items));
    } else if (line.includes('|') && DIVIDER.test(lines[at + 1] ?? '')) {
      const rows = takeWhile((next) => next.includes('|'));
      block(from, () => table(rows));
    } else {
      const part = takeWhile((next) => next.trim() && !starts(next));
      block(from, () => element('p', {}, ...lined(part)));
    }
  }
  return blocks;
}

/** Whether a line cannot go on with the paragraph before it. */
function starts(line) {
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || RULE.test(line) || ITEM.test(line);
}

function codeBlock(code, language) {
  const head = element('div', { className: 'code-head' }, element('span', {}, language || 'text'),
    copyButton(() => code, 'Copy'));
  const pre = element('pre', { tabIndex: 0 }, element('code', {}, code));
  pre.setAttribute('role', 'region');
  pre.setAttribute('aria-label', language ? `Code, ${language}` : 'Code');
  return element('div', { className: 'code' }, head, pre);
}

/** A list, with what is indented below an item as part of it. */
function list(lines) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const root = element(/\d/.test(mark) ? 'ol' : 'ul');
  if (/\d/.test(mark)) root.start = Number.parseInt(mark, 10);
  let item = null, inner = [];
  const close = () => {
    if (!item) return;
    const nested = ITEM.test(inner[0] ?? '');
    if (nested) item.append(list(inner));
    else if (inner.length) item.append(' ', ...lined(inner.map((line) => line.trim())));
    inner = [];
  };
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent.length) {
      close();
      item = element('li', {}, ...inline(found[3]));
      root.append(item);
    } else inner.push(line);
  }
  close();
  return root;
}

function table(rows) {
  const cells = (row) => row.trim().replace(/^\||\|$/g, '').split('|').map((cell) => inline(cell.trim()));
  const line = (row, tag) => element('tr', {}, ...cells(row).map((cell) => element(tag, {}, ...cell)));
  const head = element('thead', {}, line(rows[0], 'th'));
  const body = element('tbody', {}, ...rows.slice(2).map((row) => line(row, 'td')));
  return element('div', { className: 'scroll', tabIndex: 0 }, element('table', {}, head, body));
}

/** Lines of a paragraph, each ended as it was written. */
function lined(lines) {
  return lines.flatMap((line, index) => (index ? [element('br'), ...inline(line)] : inline(line)));
}

const INLINE = new RegExp([
  '(?<ticks>`+)(?<code>.+?)\\k<ticks>(?!`)',
  '\\*\\*(?<strong>\\S(?:.*?\\S)?)\\*\\*',
  '(?<!\\w)__(?<strong2>\\S(?:.*?\\S)?)__(?!\\w)',
  '\\*(?<em>[^\\s*](?:[^*]*[^\\s*])?)\\*',
  '(?<!\\w)_(?<em2>[^\\s_](?:[^_]*[^\\s_])?)_(?!\\w)',
  '~~(?<del>.+?)~~',
  '!?\\[(?<label>[^\\]]+)\\]\\((?<target>[^\\s()]+)\\)',
  '\\\\(?<escaped>[!-/:-@\\[-`{-~])',
].join('|'), 'g');

/** A line's texts and elements. */
function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > at) parts.push(text.slice(at, found.index));
    at = found.index + found[0].length;
    parts.push(piece(found[0], found.groups));
  }
  if (at < text.length) parts.push(text.slice(at));
  return parts;
}

function piece(whole, { code, strong, strong2, em, em2, del, label, target, escaped }) {
  if (code) return element('code', {}, code.trim() || code);
  if (strong ?? strong2) return element('strong', {}, ...inline(strong ?? strong2));
  if (em ?? em2) return element('em', {}, ...inline(em ?? em2));
  if (del) return element('del', {}, ...inline(del));
  if (escaped) return escaped;
  // Only to where a browser may go; all else stays as it was written.
  if (!/^(https?|mailto):/i.test(target)) return whole;
  return element('a', { href: target, target: '_blank', rel: 'noopener noreferrer' }, label);
}
