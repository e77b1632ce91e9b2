// What to know and to do where the page cannot show the server: it is being loaded, stops, refuses, or has gone.

import { advise, bytes, say, span } from './format.js';

export class Notice {
  constructor() {
    const get = (id) => document.getElementById(id);
    this.root = get('notice');
    this.title = get('notice-title');
    this.text = get('notice-text');
    this.progress = get('notice-progress');
  }

  hide() {
    this.root.hidden = true;
  }

  loading({ done, total, left_s: left, waits }) {
    const rest = left && total ? ` It takes about ${span(left)} more.` : '';
    const text = total ? `${bytes(done)} of ${bytes(total)} is there.${rest}` : 'Its files are being opened.';
    const next = `Requests ${waits ? 'wait' : 'are refused'} until then; this page goes on by itself.`;
    this.#show('The model is being loaded', `${text} ${next}`, total ? done / total : null);
  }

  /** The server has these models, and none in memory. */
  empty({ models }) {
    const there = models.length ? `There ${models.length > 1 ? 'are' : 'is'} ${models.join(', ')}.`
      : 'There are none yet: interbed pull NAME fetches one.';
    this.#show('No model is in memory', `The first request that names a model loads it, and this page then shows it. ${
      there}`);
  }

  /** The connection has broken off; `seen` is the time at which the server was last heard of, or null. */
  gone(seen) {
    const since = seen ? `What is below is from ${seen.toLocaleTimeString()}. ` : '';
    this.#show('The server does not answer', `${since}If the server has ended, start it again with interbed serve; ` +
      'its output says why it ended. This page looks for the server every few seconds.');
  }

  stopping() {
    this.#show('The server is stopping', 'The server finishes its requests and takes no more. Start the server again ' +
      'with interbed serve; this page then goes on by itself.');
  }

  refused(message) {
    this.#show('The server does not show what it does', `${message}. This page asks again every few seconds.`);
  }

  #show(title, text, part) {
    this.root.hidden = false;
    say(this.title, title);
    advise(this.text, text);
    this.progress.hidden = part == null;
    if (part != null) this.progress.value = part;
  }
}
