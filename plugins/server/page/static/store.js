// Conversations and settings, in the browser's storage. Each conversation is an entry of its own, so that tabs do not write over
// each other's. A conversation is a tree of messages: an edit or a second answer is a sibling, and nothing is ever lost.

const PREFIX = "augury.conversation.";
const SETTINGS = "augury.settings";

const read = (key) => {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null; // damaged, or storage is switched off
  }
};

export const settings = { theme: "auto", tint: true, speculate: true, sampling: {}, ...read(SETTINGS) };

export const saveSettings = () => write(SETTINGS, settings);

/** Write an entry; where there is no more room, tell whoever listens, and keep it in memory. */
function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch (error) {
    dispatchEvent(new CustomEvent("unsaved", { detail: error }));
  }
}

export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(3)), (n) => n.toString(36)).join("");

export const newConversation = () => ({ id: newId(), title: "", system: "", draft: "", changed: Date.now(), leaf: null, messages: {} });

/** Whether a conversation's title or messages hold a text. */
export const holds = ({ title, messages }, text) =>
  [title, ...Object.values(messages).flatMap((each) => [each.content, ...answersOf(each).map((answer) => answer.text)])]
    .some((each) => each?.toLowerCase().includes(text.toLowerCase()));

/** All conversations, the one changed last first. */
export function conversations() {
  const found = [];
  try {
    for (const key of Object.keys(localStorage)) {
      const each = key.startsWith(PREFIX) ? read(key) : null;
      if (each?.messages) found.push(each);
    }
  } catch {
    // no storage: the page works, and forgets
  }
  for (const each of found)
    for (const message of Object.values(each.messages))
      for (const answer of answersOf(message))
        if (answer.status === "waiting" || answer.status === "streaming")
          Object.assign(answer, { status: "failed", error: "The page was closed before the answer ended." });
  return found.sort((a, b) => b.changed - a.changed);
}

export const isConversation = (key) => key === null || key.startsWith(PREFIX);

export const save = (conversation) => write(PREFIX + conversation.id, conversation);

export function forget(conversation) {
  try {
    localStorage.removeItem(PREFIX + conversation.id);
  } catch {
    // was never there
  }
}

/** All conversations, as the text of a file. */
export const exported = () => JSON.stringify({ conversations: conversations() });

/** Keep the conversations of such a file that are not here yet; returns how many. Raises an Error where it is none. */
export function take(text) {
  const { conversations: found } = JSON.parse(text);
  if (!found.every(isConversationOfOurs)) throw new TypeError("other fields are expected");
  const known = new Set(conversations().map((each) => each.id));
  const fresh = found.filter((each) => !known.has(each.id));
  for (const each of fresh) save(each);
  return fresh.length;
}

const isText = (value) => typeof value === "string";
const areTriples = (value) => Array.isArray(value) && value.every((each) => each.length === 3 && each.every(Number.isFinite));
const isAnswer = ({ text, reasoning, runs, rounds, drafters, pending }) =>
  isText(text) && isText(reasoning) && areTriples(runs) && areTriples(rounds) && drafters.every(isText) && Array.isArray(pending);

/** A message stands after its parent, so no path goes in a circle. */
function isConversationOfOurs({ id, title, system, changed, leaf, messages }) {
  const seen = new Set([null]);
  for (const [key, message] of Object.entries(messages)) {
    const isWhole = message.role === "user" ? isText(message.content) : message.role === "assistant" && isAnswer(message.answer) && answersOf(message).every(isAnswer);
    if (message.id !== key || !seen.has(message.parent) || !isWhole) return false;
    seen.add(key);
  }
  return isText(id) && isText(title) && isText(system) && Number.isFinite(changed) && seen.has(leaf);
}

export const answersOf = (message) => [message.answer, message.plain].filter(Boolean);

/** Add a message after `parent` and make it the one that is seen last. */
export function add(conversation, parent, message) {
  const added = { id: newId(), parent: parent?.id ?? null, at: Date.now(), ...message };
  conversation.messages[added.id] = added;
  conversation.leaf = added.id;
  conversation.changed = Date.now();
  return added;
}

/** The messages that are seen, first to last; with `until`, those up to that one. */
export function path(conversation, until = conversation.leaf) {
  const found = [];
  for (let at = until; at; at = conversation.messages[at]?.parent) if (conversation.messages[at]) found.unshift(conversation.messages[at]);
  return found;
}

/** The versions of a message: those with its parent, oldest first. */
export const versions = (conversation, message) =>
  Object.values(conversation.messages).filter((each) => each.parent === message.parent).sort((a, b) => a.at - b.at);

/** Show a version of a message, with what followed it last. */
export function choose(conversation, message) {
  conversation.leaf = message.id;
  for (;;) {
    const next = Object.values(conversation.messages).filter((each) => each.parent === conversation.leaf).sort((a, b) => b.at - a.at)[0];
    if (!next) return;
    conversation.leaf = next.id;
  }
}
