// Ties the page together: what comes from the server goes to the state, and from there to what is drawn.

import { BlockMap } from './blocks.js';
import { Charts, Waits } from './charts.js';
import { Chat } from './chat.js';
import { Feed } from './feed.js';
import { say } from './format.js';
import { Sequences } from './sequences.js';
import { State } from './state.js';
import { Tiers } from './tiers.js';
import { WeightMap } from './weights.js';

const get = (id) => document.getElementById(id);
const state = new State();
const blocks = new BlockMap(state);
const weights = new WeightMap(state);
const maps = [blocks, weights];
const often = [new Tiers(state), blocks, weights, new Sequences(state, (number) => { blocks.select(number); draw(); })];
const seldom = [new Charts(state), new Waits(state)];
const feed = new Feed(take, status);
const chat = new Chat(state, feed);

/** Texts change less often than maps: nobody reads faster. */
const TELL_MS = 250;
let drawing = 0, told = 0;

function take(name, data) {
  state.apply(name, data);
  if (name === 'whole') introduce();
  draw();
}

/** Draws with the next frame, however many events have come until then. */
function draw() {
  drawing ||= requestAnimationFrame((now) => {
    drawing = 0;
    maps.forEach((map) => map.draw());
    if (now - told > TELL_MS && state.about) {
      told = now;
      often.forEach((part) => part.tell());
    }
  });
}

setInterval(() => {
  if (!state.about || document.hidden) return;
  state.tick();
  [...often, ...seldom].forEach((part) => part.tell());
  health();
}, 1000);

function introduce() {
  const { model, version } = state.about;
  say(get('model'), model);
  get('model').title = `Interbed ${version}`;
  document.title = `${model} · Interbed`;
  chat.tell();
  health();
}

function health() {
  if (feedStatus !== 'open' || !state.figures) return;
  const { health, running, waiting } = state.figures;
  show(health === 'ok' ? 'ok' : 'bad', health !== 'ok' ? health : running + waiting ? 'computing' : 'idle');
}

let feedStatus = 'wait';

function status(now, message) {
  feedStatus = now;
  const locked = now === 'locked';
  get('key-form').hidden = !locked;
  document.body.classList.toggle('locked', locked);
  get('lock').hidden = !feed.key || locked;
  if (locked) {
    say(get('key-error'), message);
    show('wait', 'locked');
    get('key').focus();
  } else if (now === 'lost') show('bad', 'no connection');
  else if (now === 'over') show('bad', 'the server is stopping');
  else if (now === 'full') show('bad', message);
  else health();
}

function show(kind, text) {
  get('health').dataset.state = kind;
  say(get('health-text'), text);
}

get('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  feed.setKey(get('key').value.trim());
  get('key').value = '';
});
get('lock').addEventListener('click', () => {
  feed.stop();
  status('locked', '');
});

const THEMES = ['', 'light', 'dark'];
function theme() {
  say(get('theme'), `Theme: ${document.documentElement.dataset.theme || 'system'}`);
  maps.forEach((map) => map.recolour());
  draw();
}
get('theme').addEventListener('click', () => {
  const { dataset } = document.documentElement;
  const next = THEMES[(THEMES.indexOf(dataset.theme ?? '') + 1) % THEMES.length];
  if (next) dataset.theme = next;
  else delete dataset.theme;
  localStorage.setItem('theme', next);
  theme();
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', theme);
new ResizeObserver(draw).observe(get('left'));
theme();
feed.start();
