// A chat to try the model.

import { ask } from './asking.js';
import { Conversation } from './conversation.js';
import { copyButton } from './copy.js';
import { count, digits, duration, element, seconds } from './format.js';
import { Markdown } from './markdown.js';

/** So near to its end, a conversation follows what is written. */
const NEAR = 60;

export class Chat {
  #conversation = new Conversation();
  #abort = null;
  #again = null;

  constructor(state, feed) {
    this.state = state;
    this.feed = feed;
    const get = (id) => document.getElementById(id);
    this.form = get('chat-form');
    this.prompt = get('prompt');
    this.log = get('messages');
    this.hint = get('chat-hint');
    this.buttons = { send: get('send'), stop: get('stop'), anew: get('chat-new') };
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      const text = this.prompt.value.trim();
      if (!text || this.#abort || !this.#isReady()) return;
      this.prompt.value = '';
      this.#exchange(text);
    });
    this.prompt.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.form.requestSubmit();
      }
    });
    this.buttons.stop.addEventListener('click', () => this.#abort?.abort());
    this.buttons.anew.addEventListener('click', () => this.#clear());
    const { settings } = this.#conversation;
    for (const name of Object.keys(settings)) {
      const field = get(name);
      field.value = settings[name];
      field.addEventListener('change', () => {
        settings[name] = field.value;
        this.#conversation.keep();
      });
    }
  }

  /** Once it is known what the model can do. */
  tell() {
    const { chats } = this.state.about;
    this.hint.textContent = chats
      ? 'Say something: the answer comes as it is computed, and its blocks appear in the map. The conversation stays ' +
        'in this browser.'
      : 'This model has no chat template: it continues the text that you write.';
    document.getElementById('system-field').hidden = !chats;
    if (!chats) {
      this.prompt.placeholder = 'Once upon a time';
      document.querySelector('label[for="prompt"]').textContent = 'Text to be continued';
    }
    if (!this.log.querySelector('.turn')) this.#restore();
  }

  /** Whether the server takes requests now; the state of the page changes it. */
  set isOpen(isOpen) {
    this.buttons.send.disabled = !isOpen;
  }

  #isReady() {
    return this.state.about && !this.buttons.send.disabled;
  }

  #restore() {
    const { turns } = this.#conversation;
    for (const turn of turns) {
      if (turn.role === 'user') this.#said(turn.content);
      else this.#answer().fill(turn);
    }
    if (turns.length) this.#offerAgain();
    this.buttons.anew.hidden = !turns.length;
    this.#scroll(true);
  }

  #clear() {
    this.#abort?.abort();
    this.#conversation.clear();
    this.#again = null;
    this.log.replaceChildren(this.hint);
    this.buttons.anew.hidden = true;
    this.prompt.focus();
  }

  #said(text) {
    this.hint.remove();
    this.log.append(element('div', { className: 'turn user' }, text));
  }

  #answer() {
    const answer = new Answer(this.state.about.chats);
    this.log.append(answer.root);
    return answer;
  }

  /** What was said is answered anew. */
  #regenerate() {
    if (this.#abort || !this.#isReady()) return;
    const text = this.#conversation.takeBack();
    if (text === null) return;
    [...this.log.querySelectorAll('.turn')].slice(-2).forEach((turn) => turn.remove());
    this.prompt.focus();
    this.#exchange(text);
  }

  async #exchange(text) {
    const conversation = this.#conversation;
    this.#again?.remove();
    this.#said(text);
    const answer = this.#answer();
    const turn = { role: 'assistant', content: '' };
    const body = this.#body(text);
    conversation.turns.push({ role: 'user', content: text }, turn);
    this.#busy(true);
    this.#scroll(true);
    const abort = (this.#abort = new AbortController());
    const times = { begin: performance.now(), first: null, last: null }, usage = { tokens: 0 };
    let drawing = 0;
    const draw = () => {
      drawing = 0;
      const follows = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR;
      answer.show(turn);
      if (follows) this.#scroll(true);
    };
    try {
      const path = this.state.about.chats ? 'v1/chat/completions' : 'v1/completions';
      for await (const chunk of ask(path, body, this.feed.headers, abort.signal)) {
        take(chunk, turn, times, usage);
        drawing ||= requestAnimationFrame(draw);
      }
    } catch (error) {
      if (!abort.signal.aborted) turn.error = error.message;
    }
    cancelAnimationFrame(drawing);
    turn.note = noteOf(times, usage, abort.signal.aborted, this.state.promptTokenSeconds);
    answer.fill(turn);
    // One that was cleared meanwhile stays so.
    if (conversation.turns.includes(turn)) {
      conversation.keep();
      this.#offerAgain();
    }
    this.#abort = null;
    this.#busy(false);
    this.#scroll();
  }

  #body(text) {
    const { about } = this.state, { settings } = this.#conversation;
    const asked = about.chats ? { messages: this.#conversation.messages(text) } : { prompt: text };
    const body = { model: about.model, max_tokens: Math.max(1, Math.round(Number(settings.length)) || 512), ...asked };
    const temperature = Number(settings.temperature);
    if (settings.temperature.trim() && temperature >= 0) body.temperature = temperature;
    return body;
  }

  /** The last answer can be asked for again. */
  #offerAgain() {
    this.#again?.remove();
    const last = [...this.log.querySelectorAll('.turn.model')].at(-1);
    if (!last) return;
    const label = last.classList.contains('failed') ? 'Try again' : 'Regenerate';
    this.#again = element('button', { type: 'button', className: 'quiet again' }, label);
    this.#again.addEventListener('click', () => this.#regenerate());
    last.querySelector('.actions').append(this.#again);
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

  #scroll(always = false) {
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    if (always || scrollHeight - scrollTop - clientHeight < 2 * NEAR) this.log.scrollTop = scrollHeight;
  }
}

/** An answer, as it is shown. */
class Answer {
  constructor(isMarkdown) {
    this.thought = element('div', { className: 'thought', hidden: true });
    this.said = element('div', { className: 'said' });
    this.note = element('p', { className: 'note' });
    this.actions = element('div', { className: 'actions' });
    this.root = element('div', { className: 'turn model' }, this.thought, this.said, this.note, this.actions);
    this.markdown = isMarkdown ? new Markdown(this.said) : null;
    this.said.classList.toggle('plain', !isMarkdown);
  }

  show({ content, thought }) {
    this.thought.hidden = !thought;
    if (thought) this.thought.textContent = thought;
    if (this.markdown) this.markdown.show(content);
    else this.said.textContent = content;
  }

  /** All of it, once it has ended. */
  fill(turn) {
    this.show(turn);
    if (turn.error) {
      this.root.classList.add('failed');
      const told = `${turn.error} This exchange is not sent with the next one.`;
      this.said.after(element('p', { className: 'error', role: 'alert' }, told));
    }
    this.note.textContent = turn.note ?? '';
    if (turn.content) this.actions.append(copyButton(() => turn.content, 'Copy'));
  }
}

function take(chunk, turn, times, usage) {
  Object.assign(usage, chunk.usage);
  const [choice] = chunk.choices ?? [];
  if (!choice) return;
  const { content, reasoning_content: thinking } = choice.delta ?? { content: choice.text };
  if (content) turn.content += content;
  if (thinking) turn.thought = (turn.thought ?? '') + thinking;
  if (!content && !thinking && !choice.finish_reason) return;
  // The last token may have no text: it comes with the reason why the answer ends.
  times.last = performance.now();
  times.first ??= times.last;
  usage.tokens += 1;
}

/** What an answer took. Its first token is the prompt's work, so the speed is that of the others. */
function noteOf({ begin, first, last }, usage, isStopped, promptTokenSeconds) {
  const parts = [];
  const generated = usage.completion_tokens ?? usage.tokens;
  if (generated) parts.push(`${count(generated)} token${generated === 1 ? '' : 's'}`);
  if (last > first && generated > 1) parts.push(`${digits((1000 * (generated - 1)) / (last - first))} tokens a second`);
  if (first) parts.push(`first token after ${seconds((first - begin) / 1000)}`);
  const cached = usage.prompt_tokens_details?.cached_tokens;
  if (cached) {
    const saved = promptTokenSeconds ? `, which saved ${duration(cached * promptTokenSeconds)}` : '';
    parts.push(`${count(cached)} of ${count(usage.prompt_tokens)} prompt tokens came from the cache${saved}`);
  }
  if (isStopped) parts.push('stopped');
  return parts.join(' · ');
}
