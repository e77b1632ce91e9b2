// Buttons that copy a text.

import { element } from './format.js';

const TOLD_MS = 1500;

/** A button that copies what `text()` is then. */
export function copyButton(text, label) {
  const button = element('button', { type: 'button', className: 'quiet' }, label);
  button.addEventListener('click', async () => {
    button.textContent = (await copied(text())) ? 'Copied' : 'Select it and press Ctrl+C';
    setTimeout(() => { button.textContent = label; }, TOLD_MS);
  });
  return button;
}

/** Whether the text has been copied. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers have no clipboard for pages that come neither over TLS nor from their own machine.
    const area = element('textarea', { value: text, className: 'hidden' });
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}
