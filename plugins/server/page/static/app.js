// The page: what is shown, and what happens when someone does something.

import { addChunk, newAnswer, resume, speedOf } from "./answer.js";
import { chat, models, props, ServerError } from "./api.js";
import { button, icon, make, morph, onFrame, plural } from "./dom.js";
import { Panel } from "./panel.js";
import { apiKey, openSettings, parameters, setDrafters } from "./settings.js";
import { closeDrawers, copy, follow, goToEnd, openDrawer, say, tell } from "./shell.js";
import * as store from "./store.js";
import { MessageView } from "./thread.js";

const $ = (id) => document.getElementById(id);
const { settings } = store;
const N_COLOURS = 8;
const EXAMPLES = [
  ["Copy and change", "Repeat this list, and put a tick before each line:\n\n- wash the apples\n- peel the apples\n- slice the apples\n- bake the apples for forty minutes\n- eat the apples"],
  ["Write a function", "Write a Python class Stack with the methods push, pop, peek and is_empty, each with a docstring and an example."],
  ["Tell a story", "Tell a short story about a lighthouse keeper who counts birds."],
];

const server = { name: null, isLoaded: false, drafters: [], plain: null }; // `plain`: tokens per second, as it expects to begin with
const running = new Map(); // by message id, what stops it
let all = store.conversations();
let current = store.newConversation();
let views = new Map();

/** Each drafter keeps its colour: those of the server in their order, then others as they are met. */
const colourOf = (name) => {
  if (!server.drafters.includes(name)) server.drafters.push(name);
  return server.drafters.indexOf(name) % N_COLOURS;
};
const panel = new Panel($("figures"), { colourOf, plain: () => server.plain, drafters: () => server.drafters, onRound: highlight });

// What is shown

function showList() {
  const fresh = document.createDocumentFragment();
  for (const each of all.filter((each) => store.holds(each, $("search").value.trim()))) {
    const isCurrent = each.id === current.id;
    fresh.append(make("li", { "data-id": each.id, class: isCurrent ? "current" : null },
      make("button", { type: "button", "data-act": "open", dir: "auto", title: each.title || null, "aria-current": isCurrent ? "page" : null }, each.title || "New conversation"),
      make("button", { type: "button", class: "icon quiet", "data-act": "rename", "aria-label": `Rename ${each.title || "the conversation"}` }, icon("pencil")),
      make("button", { type: "button", class: "icon quiet", "data-act": "forget", "aria-label": `Delete ${each.title || "the conversation"}` }, icon("trash"))));
  }
  morph($("conversations"), fresh);
}

function showThread() {
  const messages = store.path(current);
  const elements = messages.map((message) => {
    const known = views.get(message.id);
    if (known && known.message === message && Boolean(known.plainView) === Boolean(message.plain)) return known;
    const view = new MessageView(message, { act, colourOf });
    views.set(message.id, view);
    return view;
  });
  for (const view of elements) {
    const versions = store.versions(current, view.message);
    view.place(versions.indexOf(view.message), versions.length);
    view.update();
  }
  const shown = $("thread").children;
  if (shown.length !== elements.length || elements.some((view, i) => view.element !== shown[i]))
    $("thread").replaceChildren(...elements.map((view) => view.element));
  $("welcome").hidden = messages.length > 0;
  $("title").textContent = current.title || "New conversation";
  document.title = current.title ? `${current.title} – augury` : "augury";
  $("open-system").querySelector("span").textContent = current.system ? `System prompt: ${current.system}` : "Add a system prompt";
  panel.show(messages.findLast((message) => message.answer)?.answer ?? null);
  showState();
}

/** Buttons and the strip above them, by whether an answer is coming. */
function showState() {
  const isBusy = running.has(current.leaf);
  const hadFocus = document.activeElement === $("send") || document.activeElement === $("stop");
  $("send").hidden = $("compare").hidden = isBusy;
  $("stop").hidden = !isBusy;
  if (hadFocus) (isBusy ? $("stop") : $("prompt")).focus();
  const view = views.get(current.leaf);
  const isKnown = Boolean(view?.message.answer?.nTokens);
  $("strip").hidden = !isKnown;
  if (isKnown) $("strip").textContent = view.summary(true);
}

function highlight(answer, round) {
  for (const each of document.querySelectorAll(".d.lit")) each.classList.remove("lit");
  if (round === null) return;
  const view = [...views.values()].find((each) => each.message.answer === answer || each.message.plain === answer);
  for (const each of view?.element.querySelectorAll(`[data-round="${round}"]`) ?? []) each.classList.add("lit");
}

/** A message has changed: draw it with the next frame. */
function drawSoon(conversation, message, answer) {
  onFrame(message.id, () => {
    if (conversation !== current) return;
    views.get(message.id)?.update();
    panel.update(answer, !running.has(message.id));
    follow();
    showState();
  });
}

// Answers

async function complete(conversation, message, answer, body, signal) {
  try {
    for await (const chunk of chat(body, apiKey(), signal)) {
      addChunk(answer, chunk, performance.now() / 1000);
      drawSoon(conversation, message, answer);
    }
    answer.status = "done";
  } catch (error) {
    if (signal.aborted) answer.status = "stopped";
    else {
      if (!(error instanceof ServerError)) console.error(error);
      Object.assign(answer, { status: "failed", error: error.message, needsKey: error.status === 401 });
      if (!error.status) connect(); // it says there whether the server is back
    }
  }
  delete answer.startedAt;
}

/** Answer what stands before `message`, or go on with it; a comparison plainly first, then with drafts. */
async function run(conversation, message) {
  const before = store.path(conversation, message.parent).map((each) => ({ role: each.role, content: each.role === "user" ? each.content : each.answer.text }));
  if (message.answer.text) before.push({ role: "assistant", content: message.answer.text });
  const messages = [...(conversation.system ? [{ role: "system", content: conversation.system }] : []), ...before];
  const stopper = new AbortController();
  running.set(message.id, stopper);
  store.save(conversation);
  showThread();
  goToEnd();
  const body = { messages, ...(server.name ? { model: server.name } : {}) };
  if (message.plain) {
    message.seed ??= settings.sampling.seed ?? Math.floor(Math.random() * 2 ** 31);
    panel.show(message.plain);
    await complete(conversation, message, message.plain, { ...body, ...parameters({ isPlain: true }), seed: message.seed }, stopper.signal);
    message.answer.plainSpeed = speedOf(message.plain);
    if (conversation === current) panel.show(message.answer);
  }
  if (!message.plain || message.plain.status === "done")
    await complete(conversation, message, message.answer, { ...body, ...parameters(), ...(message.plain ? { seed: message.seed } : {}) }, stopper.signal);
  else message.answer.status = "stopped";
  running.delete(message.id);
  if (!all.includes(conversation)) return; // it was deleted meanwhile
  conversation.changed = Date.now();
  store.save(conversation);
  drawSoon(conversation, message, message.answer);
  if (conversation === current) say(message.answer.status === "failed" ? `Failed: ${message.answer.error}` : "The answer is complete.");
  all.sort((a, b) => b.changed - a.changed);
  showList();
  if (!server.isLoaded) connect();
}

const newReply = (isComparison) => ({ role: "assistant", answer: newAnswer(), ...(isComparison ? { plain: newAnswer() } : {}) });

function send(text, isComparison = false, parent = current.messages[current.leaf] ?? null) {
  if (!all.includes(current)) all.unshift(current);
  current.title ||= text.split("\n")[0].slice(0, 80);
  const question = store.add(current, parent, { role: "user", content: text });
  run(current, store.add(current, question, newReply(isComparison)));
  showList();
}

/** What a message's buttons ask for. */
function act(what, message, detail) {
  const parent = current.messages[message.parent] ?? null;
  if (what === "edit") {
    stop();
    send(detail, false, parent);
  } else if (what === "retry" || what === "compare") {
    stop();
    run(current, store.add(current, parent, newReply(what === "compare" || (Boolean(message.plain) && what === "retry"))));
  } else if (what === "continue") {
    resume(message.answer);
    run(current, message);
  } else if (what === "version") {
    const versions = store.versions(current, message);
    store.choose(current, versions[versions.indexOf(message) + detail]);
    store.save(current);
    showThread();
  } else if (what === "copy") copy(message.answer.text);
  else if (what === "inspect") {
    panel.show(message.answer);
    openDrawer("panel");
  } else if (what === "settings") editSettings("key");
}

const stop = () => running.get(current.leaf)?.abort();

// Conversations

function open(conversation) {
  current.draft = $("prompt").value;
  if (all.includes(current)) store.save(current);
  current = conversation;
  views = new Map();
  $("prompt").value = current.draft ?? "";
  fitPrompt();
  showThread();
  showList();
  goToEnd();
  closeDrawers();
  $("prompt").focus();
}

function forget(conversation) {
  for (const id of Object.keys(conversation.messages)) running.get(id)?.abort();
  store.forget(conversation);
  all = all.filter((each) => each !== conversation);
  if (conversation === current) open(all[0] ?? store.newConversation());
  showList();
}

function rename(conversation) {
  const title = window.prompt("Name of the conversation", conversation.title)?.trim();
  if (!title) return;
  conversation.title = title;
  store.save(conversation);
  showThread();
  showList();
}

/** Take over what another window, or a file, has added or removed. */
function readAgain() {
  const kept = new Map(all.filter((each) => each === current || Object.keys(each.messages).some((id) => running.has(id))).map((each) => [each.id, each]));
  all = store.conversations().map((each) => kept.get(each.id) ?? each);
  showList();
}

$("export").onclick = () => {
  const url = URL.createObjectURL(new Blob([store.exported()], { type: "application/json" }));
  make("a", { href: url, download: "conversations.json" }).click();
  URL.revokeObjectURL(url);
};
$("import").onclick = () => $("file").click();
$("file").onchange = async () => {
  try {
    tell(`${plural(store.take(await $("file").files[0].text()), "conversation")} imported`);
    readAgain();
  } catch (error) {
    tell(`This file holds no conversations that were exported here: ${error.message}`);
  }
  $("file").value = ""; // or the same file could not be chosen again
};

$("search").oninput = showList;
$("conversations").onclick = ({ target }) => {
  const conversation = all.find((each) => each.id === target.closest("li")?.dataset.id);
  const what = target.closest("[data-act]")?.dataset.act;
  if (what === "open") open(conversation);
  if (what === "rename") rename(conversation);
  if (what === "forget" && confirm(`Delete “${conversation.title || "New conversation"}”?`)) forget(conversation);
};
const startNew = () => open(store.newConversation());
$("new").onclick = startNew;

// The message box

const prompt = $("prompt");
function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight, innerHeight * 0.4)}px`;
}
prompt.oninput = fitPrompt;
prompt.onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit(false);
  }
  if (event.key === "ArrowUp" && !prompt.value && !running.has(current.leaf)) {
    const last = store.path(current).findLast((message) => message.role === "user");
    if (last) {
      event.preventDefault();
      views.get(last.id).edit();
    }
  }
};
function submit(isComparison) {
  const text = prompt.value.trim();
  if (!text || running.has(current.leaf)) return;
  prompt.value = current.draft = "";
  fitPrompt();
  send(text, isComparison);
}
$("composer").onsubmit = (event) => {
  event.preventDefault();
  submit(event.submitter?.value === "compare");
  prompt.focus();
};
$("stop").onclick = stop;
$("examples").append(...EXAMPLES.map(([title, text]) => make("button", { type: "button", class: "card", onclick: () => { prompt.value = text; fitPrompt(); prompt.focus(); } }, make("b", {}, title), make("span", {}, text))));

$("thread").addEventListener("pointerover", ({ target }) => {
  const answer = views.get(target.closest?.("article")?.dataset.id)?.message.answer;
  if (answer && answer === panel.answer) panel.point(target.dataset.round ? Number(target.dataset.round) : null);
});

// Keys and settings

$("strip").onclick = () => openDrawer("panel");
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) document.body.dataset.open ? closeDrawers() : stop();
  if (event.altKey && event.code === "KeyN") {
    event.preventDefault();
    startNew();
  }
});

function editSettings(focus) {
  openSettings({
    system: current.system,
    focus,
    onSave: (system) => {
      current.system = system;
      if (all.includes(current)) store.save(current);
      showThread();
      connect();
    },
  });
}
$("open-settings").onclick = () => editSettings("temperature");
$("open-system").onclick = () => editSettings("system");

// The server, and the browser

let connecting = null;
let attempt = 0; // of which the last alone counts: an answer about a model may come after another was picked
async function connect() {
  clearTimeout(connecting);
  const mine = ++attempt;
  const status = $("model");
  try {
    const names = await models(apiKey());
    if (mine !== attempt) return;
    const chosen = names.includes(settings.model) ? settings.model : names[0];
    $("models").replaceChildren(...names.map((name) => make("option", { selected: name === chosen }, name)));
    $("models").hidden = names.length < 2;
    server.name = chosen;
    const reported = await props(apiKey(), chosen);
    if (mine !== attempt) return;
    const spec = reported.speculative ?? {};
    server.isLoaded = "speculative" in reported;
    server.drafters = (spec.type ?? "none").split(";").filter((name) => name && name !== "none");
    server.plain = reported.plain_per_second ?? null;
    setDrafters([...server.drafters], spec);
    const told = !server.isLoaded ? "not loaded" : server.drafters.length ? plural(server.drafters.length, "drafter") : "no drafters";
    status.textContent = names.length > 1 ? told : `${chosen} · ${told}`;
    status.className = "";
    showThread();
  } catch (error) {
    if (mine !== attempt) return;
    status.className = "wrong";
    if (error.status === 401) {
      status.replaceChildren(button("sliders", "Enter the API key", () => editSettings("key"), { text: "Enter the API key" }));
      return;
    }
    const { task, done, total } = error.progress ?? {};
    const share = total ? `, ${task} ${Math.floor((100 * done) / total)}%` : "";
    status.textContent = error.status === 503 ? error.message + share : error.status === 403 ? "Refused under this address" : "No connection";
    connecting = setTimeout(connect, error.status === 503 ? 700 : 3000);
  }
}

$("models").onchange = () => {
  settings.model = $("models").value;
  Object.assign(server, { name: settings.model, isLoaded: false });
  store.saveSettings();
  connect();
};

addEventListener("unsaved", () => tell("This browser has no more room for conversations; delete some of them."));
addEventListener("storage", ({ key }) => {
  if (store.isConversation(key)) readAgain();
});
addEventListener("pagehide", () => {
  current.draft = prompt.value;
  for (const each of all) if (each === current || Object.keys(each.messages).some((id) => running.has(id))) store.save(each);
});

for (const each of document.querySelectorAll("[data-icon]")) each.replaceWith(icon(each.dataset.icon));
if (all.length) current = all[0];
prompt.value = current.draft ?? "";
showList();
showThread();
fitPrompt();
connect();
