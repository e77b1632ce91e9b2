// The conversation and its settings, kept in the browser.

const KEPT_BYTES = 400_000;

export class Conversation {
  /** `{role, content, thought?, note?, error?}`. One with an error is shown, and never sent. */
  turns = [];
  settings = { system: '', temperature: '', length: '512' };

  constructor() {
    try {
      const kept = JSON.parse(localStorage.getItem('chat') ?? '{}');
      if (Array.isArray(kept.turns)) this.turns = kept.turns.filter((turn) => typeof turn?.content === 'string');
      for (const name of Object.keys(this.settings)) {
        if (typeof kept.settings?.[name] === 'string') this.settings[name] = kept.settings[name];
      }
    } catch {
      // What cannot be read is as good as nothing.
    }
  }

  /** Keeps it. Of a long one, the beginning is forgotten with the next visit. */
  keep() {
    let turns = this.turns;
    const text = () => JSON.stringify({ turns, settings: this.settings });
    while (turns.length > 2 && text().length > KEPT_BYTES) turns = turns.slice(2);
    try {
      localStorage.setItem('chat', text());
    } catch {
      // A browser without room, or that keeps nothing, has the conversation until the page is closed.
    }
  }

  clear() {
    this.turns = [];
    this.keep();
  }

  /** Takes the last answer back, and what it answers; returns that. */
  takeBack() {
    while (this.turns.length) {
      const turn = this.turns.pop();
      if (turn.role === 'user') return turn.content;
    }
    return null;
  }

  /** What is sent: the exchanges that came to something, and at last what is asked now. */
  messages(asked) {
    const sent = this.settings.system.trim() ? [{ role: 'system', content: this.settings.system.trim() }] : [];
    this.turns.forEach((turn, index) => {
      const answer = this.turns[index + 1];
      if (turn.role !== 'user' || answer?.role !== 'assistant' || answer.error || !answer.content) return;
      sent.push({ role: 'user', content: turn.content }, { role: 'assistant', content: answer.content });
    });
    return [...sent, { role: 'user', content: asked }];
  }
}
