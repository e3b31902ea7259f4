// The dialog of settings, and the parameters of a request that follow from them.

import { make } from "./dom.js";
import { saveSettings, settings } from "./store.js";

const NUMBERS = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "max_tokens"];
const LIMITS = ["n_max", "n_min", "p_min"];
const MAX_TOKENS = 1024; // small models repeat themselves until the context is full

const dialog = document.getElementById("settings");
const form = dialog.querySelector("form");
const field = (name) => form.elements[name];

/** The key is kept apart from what is shown to others when settings are copied. */
const KEY = "augury.key";
let memory = "";
export const apiKey = () => {
  try {
    return localStorage.getItem(KEY) ?? memory;
  } catch {
    return memory;
  }
};
const keepKey = (key) => {
  memory = key;
  try {
    if (key) localStorage.setItem(KEY, key);
    else localStorage.removeItem(KEY);
  } catch {
    // for as long as the page is open
  }
};

/** What a request says beside its messages; a field that is empty is left to the server. */
export function parameters({ isPlain = false } = {}) {
  const { sampling, speculate, off = [] } = settings;
  const given = Object.fromEntries(Object.entries(sampling).filter(([name]) => NUMBERS.includes(name)));
  const chosen = known.filter((name) => !off.includes(name));
  const limits = chosen.some((name) => unsure.includes(name)) ? LIMITS : LIMITS.filter((name) => name !== "p_min");
  const speculative = Object.fromEntries(Object.entries(sampling).filter(([name]) => limits.includes(name)));
  if (off.length && chosen.length && chosen.length < known.length) speculative.type = chosen.join(";");
  const isOff = isPlain || !speculate || (known.length > 0 && !chosen.length);
  return { max_tokens: MAX_TOKENS, ...given, ...settings.more, ...(isOff ? { speculative: false } : Object.keys(speculative).length ? { speculative } : {}) };
}

let known = []; // drafters of the server
let unsure = []; // those of them that end a draft where the next token is less probable than `p_min`

/** The server has these drafters, with these options. */
export function setDrafters(names, options) {
  known = names;
  unsure = names.filter((name) => options[name]?.p_min !== undefined);
  field("p_min").parentElement.hidden = !unsure.length;
}

/** What a text says as a JSON object, or null where it is none. */
function asObject(text) {
  try {
    const value = JSON.parse(text.trim() || "{}");
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}
field("more").oninput = () => field("more").setCustomValidity(asObject(field("more").value) ? "" : "A JSON object is expected, such as {\"top_n_sigma\": 1.5}");

/** Show the dialog; `onSave` is told of the conversation's system prompt. */
export function openSettings({ system, focus = null, onSave }) {
  field("system").value = system;
  field("speculate").checked = settings.speculate;
  for (const name of [...NUMBERS, ...LIMITS]) field(name).value = settings.sampling[name] ?? "";
  field("more").value = Object.keys(settings.more ?? {}).length ? JSON.stringify(settings.more, null, 1) : "";
  field("more").setCustomValidity("");
  field("key").value = apiKey();
  document.getElementById("drafters").replaceChildren(
    ...known.map((name) => make("label", { class: "check" }, make("input", { type: "checkbox", name: "drafter", value: name, checked: !settings.off?.includes(name) }), name)));
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue === "reset") {
      Object.assign(settings, { sampling: {}, more: {}, speculate: true, off: [] });
      saveSettings();
    }
    if (dialog.returnValue !== "save") return;
    settings.speculate = field("speculate").checked;
    settings.off = [...form.querySelectorAll("[name=drafter]:not(:checked)")].map((box) => box.value);
    settings.sampling = Object.fromEntries([...NUMBERS, ...LIMITS].filter((name) => field(name).value !== "").map((name) => [name, Number(field(name).value)]));
    settings.more = asObject(field("more").value);
    keepKey(field("key").value.trim());
    saveSettings();
    onSave(field("system").value.trim());
  };
  dialog.showModal();
  if (focus) field(focus).focus();
}
