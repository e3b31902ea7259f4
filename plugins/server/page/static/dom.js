// Making and renewing elements. Text only ever becomes text nodes: the page's policy forbids turning it into HTML.

const ICONS = {
  plus: "M12 5v14M5 12h14",
  cross: "M6 6l12 12M18 6L6 18",
  menu: "M4 7h16M4 12h16M4 17h16",
  chart: "M5 19v-6M10 19V6M15 19v-9M20 19V9",
  sliders: "M4 7h9M17 7h3M15 4v6M4 17h3M11 17h9M9 14v6",
  moon: "M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M5.6 18.4L7 17M17 7l1.4-1.4",
  auto: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  up: "M12 19V6M6 11l6-6 6 6",
  down: "M12 5v13M6 13l6 6 6-6",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  stop: "M7 7h10v10H7z",
  columns: "M5 5h5v14H5zM14 5h5v14h-5z",
  copy: "M9 9h10v11H9zM6 15H5V4h10v2",
  redo: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  pencil: "M5 19l1-4L16 5l3 3L9 18zM14 7l3 3",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  play: "M8 5l11 7-11 7z",
};

/** An element: `make("button", { class: "quiet", onclick, "aria-label": "Stop" }, "text", otherElement)`. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element[key] = value;
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

/** An element of SVG, with attributes. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export const icon = (name) =>
  svg("svg", { class: "i", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));

/** A button with an icon, and a text beside it or, without one, a label for those who cannot see it. */
export function button(name, label, onclick, { text = null, ...attributes } = {}) {
  return make("button", { type: "button", class: "quiet small", "aria-label": text ? null : label, title: label, onclick, ...attributes }, icon(name), text);
}

/** Renew the children of `element` from those of `fresh`: what is the same stays, so that nothing flickers or loses a selection. */
export function morph(element, fresh, from = 0) {
  let old = element.childNodes[from] ?? null;
  for (const child of [...fresh.childNodes]) {
    const next = old?.nextSibling ?? null;
    if (!old) element.append(child);
    else if (old.nodeName !== child.nodeName || old.nodeType !== child.nodeType) old.replaceWith(child);
    else if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== child.data) old.data = child.data;
    } else {
      for (const { name } of [...old.attributes]) if (!child.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of child.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      morph(old, child);
    }
    old = next;
  }
  while (old) {
    const next = old.nextSibling;
    old.remove();
    old = next;
  }
}

const waiting = new Map();

/** Call `draw` before the next frame, however often it is asked for until then. */
export function onFrame(key, draw) {
  if (waiting.size === 0) {
    const run = () => {
      const draws = [...waiting.values()];
      waiting.clear();
      for (const each of draws) each();
    };
    if (document.hidden) setTimeout(run, 200); // no frames are drawn in a tab that nobody sees
    else requestAnimationFrame(run);
  }
  waiting.set(key, draw);
}

export const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
