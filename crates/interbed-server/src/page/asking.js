// Asks the model, by the same API that all clients use.

/** A request that was refused, or an answer that broke off. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The chunks of an answer to `body`. */
export async function* ask(path, body, headers, signal) {
  let answer;
  try {
    answer = await fetch(path, {
      method: 'POST', signal, body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      headers: { 'content-type': 'application/json', ...headers },
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Refused('The server cannot be reached. Is it still running?', 0);
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    throw new Refused(told?.error?.message ?? `The server answered ${answer.status}.`, answer.status);
  }
  let isDone = false;
  try {
    for await (const data of events(answer.body)) {
      isDone = data === '[DONE]';
      if (isDone) return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(chunk.error.message, answer.status);
      yield chunk;
    }
  } catch (error) {
    if (signal.aborted || error instanceof Refused) throw error;
  }
  if (!isDone) throw new Refused('The connection broke off in the middle of the answer.', 0);
}

/** The data of each event of a stream. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split('\n\n');
    text = parts.pop();
    for (const part of parts) {
      if (part.startsWith('data: ')) yield part.slice('data: '.length);
    }
  }
}
