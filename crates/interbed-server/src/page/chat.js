// A chat to try the model, by the same API that all clients use.

import { count, digits, element, seconds } from './format.js';

export class Chat {
  #turns = [];
  #abort = null;

  constructor(state, feed) {
    this.state = state;
    this.feed = feed;
    const get = (id) => document.getElementById(id);
    this.form = get('chat-form');
    this.prompt = get('prompt');
    this.length = get('length');
    this.log = get('messages');
    this.hint = get('chat-hint');
    this.buttons = { send: get('send'), stop: get('stop'), anew: get('chat-new') };
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#send();
    });
    this.prompt.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.form.requestSubmit();
      }
    });
    this.buttons.stop.addEventListener('click', () => this.#abort?.abort());
    this.buttons.anew.addEventListener('click', () => this.#clear());
  }

  /** Once it is known what the model can do. */
  tell() {
    const { chats } = this.state.about;
    this.hint.textContent = chats
      ? 'Say something: the answer comes as it is computed, and its blocks appear in the map.'
      : 'This model has no chat template: it continues the text that you write.';
    if (!chats) {
      this.prompt.placeholder = 'Once upon a time';
      document.getElementById('prompt').previousElementSibling.textContent = 'Text to be continued';
    }
  }

  #clear() {
    this.#abort?.abort();
    this.#turns = [];
    this.log.replaceChildren(this.hint);
    this.buttons.anew.hidden = true;
    this.prompt.focus();
  }

  async #send() {
    const text = this.prompt.value.trim();
    if (!text || this.#abort || !this.state.about) return;
    this.hint.remove();
    this.prompt.value = '';
    this.log.append(element('div', { className: 'turn user' }, text));
    const thought = element('div', { className: 'thought', hidden: true });
    const said = element('div', { className: 'said' }), note = element('p', { className: 'note' });
    const turn = element('div', { className: 'turn model' }, thought, said, note);
    this.log.append(turn);
    this.#turns.push({ role: 'user', content: text });
    this.#busy(true);
    const abort = (this.#abort = new AbortController());
    const begin = performance.now();
    let first = null, last = null, tokens = 0, usage = null, answer = '';
    const piece = ({ content, reasoning_content: thinking }) => {
      if (!content && !thinking) return;
      last = performance.now();
      first ??= last;
      tokens += 1;
      if (thinking) {
        thought.hidden = false;
        thought.append(thinking);
      }
      if (content) {
        answer += content;
        said.append(content);
      }
      this.#scroll();
    };
    try {
      for await (const chunk of this.#ask(abort.signal)) {
        if (chunk.error) throw new Error(chunk.error.message);
        usage = chunk.usage ?? usage;
        const [choice] = chunk.choices ?? [];
        if (choice) piece(choice.delta ?? { content: choice.text });
      }
    } catch (error) {
      if (!abort.signal.aborted) turn.append(element('p', { className: 'error', role: 'alert' }, error.message));
    }
    this.#turns.push({ role: 'assistant', content: answer });
    const parts = [];
    if (first) parts.push(`first token after ${seconds((first - begin) / 1000)}`);
    const generated = usage?.completion_tokens ?? tokens;
    if (last > first) parts.push(`${digits((1000 * (generated - 1)) / (last - first))} tokens a second`);
    const cached = usage?.prompt_tokens_details?.cached_tokens;
    if (cached) parts.push(`${count(cached)} of ${count(usage.prompt_tokens)} prompt tokens came from the cache`);
    if (abort.signal.aborted) parts.push('stopped');
    note.textContent = parts.join(', ');
    this.#abort = null;
    this.#busy(false);
    this.#scroll();
  }

  /** The chunks of the answer. */
  async *#ask(signal) {
    const { about } = this.state;
    const asked = about.chats ? { messages: this.#turns } : { prompt: this.#turns.at(-1).content };
    const body = {
      model: about.model, stream: true, stream_options: { include_usage: true },
      max_tokens: Math.max(1, Number(this.length.value) || 256), ...asked,
    };
    const answer = await fetch(about.chats ? 'v1/chat/completions' : 'v1/completions', {
      method: 'POST', signal, body: JSON.stringify(body),
      headers: { 'content-type': 'application/json', ...this.feed.headers },
    });
    if (!answer.ok) {
      const told = await answer.json().catch(() => null);
      throw new Error(told?.error?.message ?? `The server answered ${answer.status}.`);
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const events = text.split('\n\n');
      text = events.pop();
      for (const event of events) {
        const data = event.replace(/^data: /, '');
        if (event.startsWith('data: ') && data !== '[DONE]') yield JSON.parse(data);
      }
    }
  }

  #busy(busy) {
    const { send, stop, anew } = this.buttons;
    const focused = document.activeElement;
    send.hidden = busy;
    stop.hidden = !busy;
    anew.hidden = false;
    // Where the focus was on a button that has gone.
    if (focused === send) stop.focus();
    if (focused === stop) this.prompt.focus();
  }

  #scroll() {
    this.log.scrollTop = this.log.scrollHeight;
  }
}
