// The server's stream of events. It begins anew when it breaks off, and rests while nobody sees the page.

const RETRY_MS = [500, 1000, 2000, 5000];
const HIDDEN_MS = 20_000;

export class Feed {
  /** `onEvent(name, data)` gets what comes; `onStatus(status, message)` 'open', 'lost', 'locked', 'over' or 'full'. */
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
        const told = await answer.json().catch(() => null);
        this.onStatus('full', told?.error?.message ?? `The server answered ${answer.status}.`);
        return this.#again(abort);
      }
      this.onStatus('open');
      this.failures = 0;
      await this.#read(answer.body);
      this.onStatus('lost');
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

  #again(abort) {
    if (this.abort !== abort) return;
    const pause = RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)];
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
    if (name === 'event: end') return this.onStatus('over');
    this.onEvent(name.slice('event: '.length), JSON.parse(data.slice('data: '.length)));
  }

  #rest() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.stop(), HIDDEN_MS);
    else if (!this.abort) this.start();
  }
}
