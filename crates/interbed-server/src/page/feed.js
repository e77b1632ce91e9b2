// The server's stream of events. It begins anew when it breaks off, and rests while nobody sees the page.

const RETRY_MS = [500, 1000, 2000, 5000];
const LOADING_MS = 500;
const HIDDEN_MS = 20_000;

export class Feed {
  /** `onEvent(name, data)` gets what comes; `onStatus(status, told)` 'open', 'lost', 'locked', 'loading', 'over',
      'refused', or 'empty' where a server of several models has none of them in memory. */
  constructor(onEvent, onStatus) {
    this.onEvent = onEvent;
    this.onStatus = onStatus;
    this.key = sessionStorage.getItem('key') ?? '';
    this.failures = 0;
    document.addEventListener('visibilitychange', () => this.#rest());
  }

  /** What requests carry. */
  get headers() {
    return this.key ? { authorization: `Bearer ${this.key}` } : {};
  }

  setKey(key) {
    this.key = key;
    sessionStorage.setItem('key', key);
    this.start();
  }

  async start() {
    this.stop();
    const abort = (this.abort = new AbortController());
    try {
      const answer = await fetch('live/events', { headers: this.headers, signal: abort.signal, cache: 'no-store' });
      if (answer.status === 401) return this.onStatus('locked', this.key ? 'The server does not know this key.' : '');
      if (!answer.ok) {
        const { error } = (await answer.json().catch(() => null)) ?? {};
        if (error?.code === 'loading') this.onStatus('loading', await this.#loaded(abort.signal));
        else if (error?.code === 'draining') this.onStatus('over');
        else this.onStatus('refused', error?.message ?? `The server answered ${answer.status}.`);
        return this.#again(abort, error?.code === 'loading' ? LOADING_MS : undefined);
      }
      this.isOver = false;
      this.onStatus('open');
      this.failures = 0;
      await this.#read(answer.body);
      if (!this.isOver) this.onStatus('lost');
    } catch {
      if (abort.signal.aborted) return;
      this.onStatus('lost');
    }
    this.#again(abort);
  }

  stop() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
  }

  /** How far the model is loaded: `{done, total, left_s, waits}`, as far as that is known. */
  async #loaded(signal) {
    const answer = await fetch('health', { signal, cache: 'no-store' });
    const { loaded_bytes: done, total_bytes: total } = await answer.json().catch(() => ({}));
    return { done, total, left_s: Number(answer.headers.get('retry-after')) || null, waits: answer.ok };
  }

  #again(abort, pause = RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)]) {
    if (this.abort !== abort) return;
    this.failures += 1;
    this.timer = setTimeout(() => this.start(), pause);
  }

  async #read(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      let end;
      while ((end = text.indexOf('\n\n')) >= 0) {
        this.#take(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  }

  #take(event) {
    const [name, data] = event.split('\n');
    if (!data) return;
    if (name === 'event: end') {
      this.isOver = true;
      return this.onStatus('over');
    }
    if (name === 'event: change') {
      // The stream that is asked for next has more to tell.
      this.isOver = true;
      return;
    }
    if (name === 'event: empty') return this.onStatus('empty', JSON.parse(data.slice('data: '.length)));
    this.onEvent(name.slice('event: '.length), JSON.parse(data.slice('data: '.length)));
  }

  #rest() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.stop(), HIDDEN_MS);
    else if (!this.abort) this.start();
  }
}
