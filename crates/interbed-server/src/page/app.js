// Ties the page together: what comes from the server goes to the state, and from there to what is drawn.

import { BlockMap } from './blocks.js';
import { Charts, Waits } from './charts.js';
import { Chat } from './chat.js';
import { Feed } from './feed.js';
import { say } from './format.js';
import { Headline } from './headline.js';
import { Notice } from './notice.js';
import { Requests } from './requests.js';
import { FirstRequest } from './rest.js';
import { State } from './state.js';
import { Tiers } from './tiers.js';
import { WeightMap } from './weights.js';

const get = (id) => document.getElementById(id);
const state = new State();
const blocks = new BlockMap(state);
const weights = new WeightMap(state);
const maps = [blocks, weights];
const often = [new Tiers(state), blocks, weights, new Requests(state, (number) => { blocks.select(number); draw(); })];
const feed = new Feed(take, status);
const seldom = [new Charts(state), new Waits(state), new Headline(state), new FirstRequest(state, feed)];
const notice = new Notice();
const chat = new Chat(state, feed);

/** Texts change less often than maps: nobody reads faster. */
const TELL_MS = 250;
let drawing = 0, told = 0;

function take(name, data) {
  state.apply(name, data);
  heard = new Date();
  document.body.classList.remove('unknown');
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
  if (!state.about || document.hidden || feedStatus !== 'open') return;
  state.tick();
  [...often, ...seldom].forEach((part) => part.tell());
  health();
}, 1000);

function introduce() {
  document.title = `${state.about.model} · Interbed`;
  [...often, ...seldom].forEach((part) => part.tell());
  chat.tell();
  health();
}

function health() {
  if (feedStatus !== 'open' || !state.figures) return;
  const { health, running, waiting } = state.figures;
  show(health === 'ok' ? 'ok' : 'bad', health !== 'ok' ? health : running + waiting ? 'computing' : 'idle');
}

let feedStatus = 'wait', heard = null;

function status(now, told) {
  feedStatus = now;
  const locked = now === 'locked';
  get('key-form').hidden = !locked;
  document.body.classList.toggle('locked', locked);
  get('lock').hidden = !feed.key || locked;
  if (locked) {
    notice.hide();
    say(get('key-error'), told);
    show('wait', 'locked');
    get('key').focus();
  } else if (now === 'loading') {
    notice.loading(told);
    show('wait', 'loading');
  } else if (now === 'empty') {
    notice.empty(told);
    show('ok', 'no model in memory');
  } else if (now === 'lost') {
    notice.gone(state.about && heard);
    show('bad', 'no connection');
  } else if (now === 'over') {
    notice.stopping();
    show('bad', 'stopping');
  } else if (now === 'refused') {
    notice.refused(told);
    show('bad', 'refused');
  } else {
    notice.hide();
    health();
  }
  // What is shown is no longer so, or nothing is known yet.
  document.body.classList.toggle('stale', now !== 'open');
  document.body.classList.toggle('unknown', !state.about);
  chat.isOpen = now === 'open';
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
// The chat ends where the window does, so that Send is in sight before anybody scrolls.
const above = () => get('chat').style.setProperty('--above', `${Math.max(0, get('chat').parentElement.offsetTop)}px`);
new ResizeObserver(above).observe(get('headline'));
theme();
feed.start();
