// The messages of a conversation as elements. What cannot be done here is asked of the page: `act(what, message)`.

import { speedOf, timesPlain, tokensByDrafter } from "./answer.js";
import { button, make, morph, plural } from "./dom.js";
import { blocks, linesOf } from "./markdown.js";
import { verdictOn } from "./comparison.js";

const isRunning = (answer) => answer.status === "waiting" || answer.status === "streaming";

/** Appends stretches of an answer's text, each drafted one in an element of its own that names its round. */
function painter(answer, colourOf) {
  const { runs, text, drafters } = answer;
  return (element, from, to) => {
    let low = 0, high = runs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (runs[middle][0] > from) high = middle;
      else low = middle + 1;
    }
    for (; from < to; low++) {
      const [end, round, place] = runs[low] ?? [to, 0, -1];
      const piece = text.slice(from, Math.min(end, to));
      const tinted = place < 0 ? "" : piece.trimStart(); // the blank before a word is drafted with it, but looks better plain
      if (tinted.length < piece.length) element.append(piece.slice(0, piece.length - tinted.length));
      if (tinted) element.append(make("span", { class: `d c${colourOf(drafters[place])}`, "data-round": round }, tinted));
      from = end;
    }
  };
}

/** An answer's text, rendered anew only from the block on that may still change. */
class AnswerText {
  constructor(colourOf) {
    this.element = make("div", { class: "text" });
    this.colourOf = colourOf;
    this.start = this.count = 0; // of the block that is last, in the text and among the elements
  }

  update(answer) {
    const fresh = document.createDocumentFragment();
    const isOpen = isRunning(answer);
    const starts = blocks(linesOf(answer.text, this.start), fresh, painter(answer, this.colourOf), isOpen);
    morph(this.element, fresh, this.count);
    this.element.classList.toggle("running", isOpen);
    if (isOpen && starts.length > 1) {
      this.start = starts.at(-1);
      this.count += starts.length - 1;
    }
  }
}

class AnswerView {
  constructor(colourOf, heading = null) {
    this.text = new AnswerText(colourOf);
    this.reasoning = make("div", { dir: "auto" });
    this.thoughts = make("details", { class: "thoughts", hidden: true }, make("summary", {}, "Reasoning"), this.reasoning);
    this.speed = heading && make("span", { class: "faint" });
    this.element = make("section", { class: "answer" }, heading && make("h3", {}, heading, this.speed), this.thoughts, this.text.element);
  }

  update(answer) {
    this.thoughts.hidden = !answer.reasoning;
    if (this.reasoning.textContent !== answer.reasoning) this.reasoning.textContent = answer.reasoning;
    this.text.update(answer);
    const speed = this.speed && speedOf(answer);
    if (speed) this.speed.textContent = `${speed.toFixed(1)} tok/s`;
  }
}

const ENDINGS = { length: "The limit of tokens is reached.", context: "The context is full." };

function ending(message, answer, act) {
  const goesOn = answer.text && !message.plain && button("play", "Continue", () => act("continue", message), { text: "Continue", class: "quiet small continue" });
  if (answer.status === "failed") {
    const again = button("redo", "Retry", () => act("retry", message), { text: "Retry" });
    const key = answer.needsKey && button("sliders", "Enter a key", () => act("settings", message), { text: "Enter a key" });
    return make("div", { class: "trouble", role: "alert" }, make("p", {}, answer.error), make("div", { class: "row" }, again, goesOn, key));
  }
  const reason = answer.status === "stopped" ? "Stopped." : ENDINGS[answer.finish];
  return reason && !isRunning(answer) && make("div", { class: "row faint" }, reason, answer.finish === "context" ? null : goesOn);
}

/** One message. `update` shows its present state, `place` where it stands among its versions. */
export class MessageView {
  constructor(message, { act, colourOf }) {
    Object.assign(this, { message, act, colourOf, shown: {} });
    this.tools = make("footer");
    this.element = make("article", { class: message.role, "data-id": message.id });
    if (message.role === "user") this.element.append(make("p", { class: "bubble", dir: "auto" }, message.content), this.tools);
    else {
      if (message.plain) this.plainView = new AnswerView(colourOf, "Plain");
      this.view = new AnswerView(colourOf, message.plain && "Speculative");
      this.body = make("div", { class: message.plain ? "both" : "" }, this.plainView?.element, this.view.element);
      this.verdict = make("div", { class: "verdict", role: "status" });
      this.ending = make("div");
      this.element.append(this.body, this.verdict, this.ending, this.tools);
    }
  }

  update() {
    const { message, act } = this;
    if (message.role === "user") return;
    this.view.update(message.answer);
    if (message.plain) this.plainView.update(message.plain);
    const isBusy = [message.answer, message.plain].some((each) => each && isRunning(each));
    this.element.setAttribute("aria-busy", isBusy);
    const failed = [message.plain, message.answer].find((each) => each?.status === "failed") ?? message.answer;
    const { status, error, finish, needsKey, text } = failed;
    if (this.isNew("ending", status, error, finish, needsKey, Boolean(text))) this.ending.replaceChildren(ending(message, failed, act) || "");
    if (message.plain) this.verdict.replaceChildren(...verdictOn(message));
    this.chip.hidden = !message.answer.nTokens;
    this.chip.replaceChildren(this.summary());
  }

  /** In a few words how fast it was, and how much of it was drafted; in even fewer for the strip above the keyboard of a phone. */
  summary(isShort = false) {
    const { answer } = this.message;
    const speed = speedOf(answer);
    const times = timesPlain(answer);
    const nDrafted = [...tokensByDrafter(answer).values()].reduce((sum, n) => sum + n, 0);
    const figures = [plural(answer.nTokens, "token")];
    if (speed) figures.push(`${speed.toFixed(1)} tok/s`);
    if (times && nDrafted) figures.push(`${times}× plain`);
    if (nDrafted) figures.push(`${Math.round((100 * nDrafted) / answer.nTokens)}% drafted`);
    return (isShort && figures.length > 2 ? figures.slice(1, 3) : figures).join(" · ");
  }

  /** Whether something is not shown like this: a button that is made anew while it is pressed would not be heard of. */
  isNew(what, ...state) {
    const before = this.shown[what];
    this.shown[what] = JSON.stringify(state);
    return this.shown[what] !== before;
  }

  /** Buttons, for the message's place among its versions. */
  place(index, n) {
    const { message, act } = this;
    if (!this.isNew("place", index, n)) return;
    const versions = n > 1 && make("span", { class: "versions" },
      button("left", "Earlier version", () => act("version", message, -1), { disabled: index === 0 }),
      `${index + 1} / ${n}`,
      button("right", "Later version", () => act("version", message, 1), { disabled: index === n - 1 }));
    if (message.role === "user") {
      this.tools.replaceChildren(...[versions, button("pencil", "Edit", () => this.edit())].filter(Boolean));
      return;
    }
    this.chip = make("button", { type: "button", class: "quiet small chip", title: "Show the figures of this answer", onclick: () => act("inspect", message) }, this.summary());
    this.tools.replaceChildren(...[
      versions,
      button("copy", "Copy", () => act("copy", message)),
      button("redo", "Regenerate", () => act("retry", message)),
      button("columns", "Compare with plain decoding", () => act("compare", message)),
      this.chip,
    ].filter(Boolean));
  }

  edit() {
    const { message, act } = this;
    const box = make("textarea", { "aria-label": "Edit the message", dir: "auto", rows: Math.min(message.content.split("\n").length + 1, 12) });
    box.value = message.content;
    const close = () => {
      form.replaceWith(bubble);
      this.tools.hidden = false;
      this.tools.querySelector("[aria-label=Edit]")?.focus();
    };
    const send = () => {
      close();
      if (box.value.trim()) act("edit", message, box.value.trim());
    };
    const form = make("form", { class: "edit", onsubmit: (event) => { event.preventDefault(); send(); } }, box,
      make("div", { class: "row" }, make("span", { class: "spring" }), make("button", { type: "button", class: "quiet", onclick: close }, "Cancel"), make("button", { class: "primary" }, "Send")));
    box.onkeydown = (event) => {
      if (event.key === "Escape") { event.stopPropagation(); close(); }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    };
    const bubble = this.element.querySelector(".bubble");
    bubble.replaceWith(form);
    this.tools.hidden = true;
    box.focus();
  }
}
