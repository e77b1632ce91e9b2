// Runs before the first paint, so that the page never shows in the other theme.
const theme = localStorage.getItem('theme');
if (theme) document.documentElement.dataset.theme = theme;
