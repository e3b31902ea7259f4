// What is around the chat: drawers, theme, scrolling, and short notices.

import { icon } from "./dom.js";
import { saveSettings, settings } from "./store.js";

const $ = (id) => document.getElementById(id);

// Scrolling: the end of the text stays in sight unless someone reads above it

const scroller = $("scroller");
let isFollowing = true;
const gap = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
scroller.addEventListener("scroll", () => {
  isFollowing = gap() < 48;
  $("latest").hidden = isFollowing;
}, { passive: true });

export const follow = () => {
  if (isFollowing && $("welcome").hidden) scroller.scrollTop = scroller.scrollHeight;
};

/** Go to the end of the text, and stay there. */
export const goToEnd = () => {
  isFollowing = true;
  follow();
};
$("latest").onclick = goToEnd;
new ResizeObserver(follow).observe($("thread"));

// Notices

/** Tell those who listen to the page instead of seeing it. */
export const say = (text) => $("announcer").textContent = text;

let fading = null;
/** Tell everyone, for a while. */
export function tell(text) {
  $("toast").textContent = text;
  clearTimeout(fading);
  fading = setTimeout(() => { $("toast").textContent = ""; }, 4000);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied");
  } catch {
    tell("The browser does not allow copying here");
  }
}

document.addEventListener("click", ({ target }) => {
  const copied = target.closest?.("[data-copy]");
  if (!copied) return;
  copy(copied.closest("figure").querySelector("code").textContent);
  copied.textContent = "Copied";
  setTimeout(() => { copied.textContent = "Copy"; }, 1500);
});

// Drawers: where the window is too narrow for the conversations or the figures beside the chat

const drawers = { sidebar: "open-sidebar", panel: "open-panel" };
const main = document.querySelector("main");
export function openDrawer(name) {
  if (getComputedStyle($(name)).position !== "fixed") return; // there is room for it, and it is seen
  document.body.dataset.open = name;
  main.inert = true;
  $("backdrop").hidden = false;
  $(name).querySelector("button").focus();
}
export function closeDrawers() {
  const name = document.body.dataset.open;
  if (!name) return;
  const hadFocus = $(name).contains(document.activeElement);
  delete document.body.dataset.open;
  main.inert = false;
  $("backdrop").hidden = true;
  if (hadFocus) $(drawers[name]).focus();
}
for (const [name, opener] of Object.entries(drawers)) $(opener).onclick = () => openDrawer(name);
$("backdrop").onclick = $("close-panel").onclick = closeDrawers;

// Theme

const THEMES = { auto: "auto", light: "sun", dark: "moon" };
function showTheme() {
  document.documentElement.dataset.theme = settings.theme;
  $("theme").replaceChildren(icon(THEMES[settings.theme] ?? "auto"));
  $("theme").title = `Theme: ${settings.theme}`;
  document.body.classList.toggle("tinted", settings.tint);
  $("tint").checked = settings.tint;
}
$("theme").onclick = () => {
  const names = Object.keys(THEMES);
  settings.theme = names[(names.indexOf(settings.theme) + 1) % names.length];
  saveSettings();
  showTheme();
};
$("tint").onchange = () => {
  settings.tint = $("tint").checked;
  saveSettings();
  showTheme();
};

showTheme();
