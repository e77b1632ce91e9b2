// A server at rest: what the last minute came to, the peaks, and a first request to copy.

import { copyButton } from './copy.js';
import { count, digits, element, plural, say } from './format.js';

const MINUTE = 60;

/** What the last minute came to, and the peaks of those that were seen. */
export function lastMinute({ recent, history, now }) {
  const ended = recent.requests.filter(({ at }) => now - at < MINUTE);
  const sum = (of) => ended.reduce((sum, request) => sum + of(request), 0);
  const cached = sum((request) => request.cached);
  // More may have ended than are listed.
  const atLeast = ended.length > 10 && ended.length === recent.requests.length ? 'at least ' : '';
  const tokens = `${count(sum((request) => request.generated))} tokens for ${count(sum((request) => request.prompt))}`;
  const found = cached ? `, ${count(cached)} of them found in the cache` : '';
  const told = ended.length
    ? `In the last minute ${atLeast}${plural(ended.length, 'request')} ended: ${tokens} of prompts${found}.`
    : 'No request in the last minute.';
  const peak = (of) => Math.max(0, ...history.map(of));
  const [most, running] = [peak((sample) => sample.gen), peak((sample) => sample.running)];
  if (!most) return told;
  const together = `${plural(running, 'request')} at a time`;
  return `${told} Peaks of the last minutes: ${digits(most)} tokens a second, ${together}.`;
}

/** A request to copy, for whoever has sent none yet. */
export class FirstRequest {
  constructor(state, feed) {
    this.state = state;
    this.feed = feed;
    this.root = document.getElementById('rest');
    this.command = element('code');
    const pre = element('pre', { tabIndex: 0, role: 'region', 'aria-label': 'A request to copy' }, this.command);
    const head = element('div', { className: 'code-head' }, element('span', {}, 'A request to begin with'),
      copyButton(() => this.command.textContent, 'Copy'));
    this.root.append(element('div', { className: 'code' }, head, pre));
  }

  tell() {
    const { figures } = this.state;
    if (!figures) return;
    this.root.hidden = figures.running + figures.waiting + figures.swapped > 0;
    if (!this.root.hidden) say(this.command, this.#request());
  }

  #request() {
    const { about: { chats } } = this.state;
    const base = new URL(chats ? 'v1/chat/completions' : 'v1/completions', document.baseURI);
    const key = this.feed.key ? ' \\\n  -H "Authorization: Bearer $KEY"' : '';
    const body = chats ? '{"messages": [{"role": "user", "content": "Hello!"}]}' : '{"prompt": "Once upon a time"}';
    return `curl ${base.href} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${body}'`;
  }
}
