// Beside the chat: what speculation did for one answer, while it comes and after.

import { acceptance, plainOf, speedOf, timesPlain, tokensByDrafter } from "./answer.js";
import { make, morph, plural, svg } from "./dom.js";

const STEP = 7, BAR = 5, HEIGHT = 92; // pixels of a round and of the chart
const OFTEN = 100; // milliseconds between drawings

const percent = (part, whole) => `${Math.round((100 * part) / whole)}%`;

export class Panel {
  /** `plain` and `drafters` tell what is known of the server, `onRound` is told of an answer and the round pointed at. */
  constructor(root, { colourOf, plain, drafters, onRound }) {
    Object.assign(this, { root, colourOf, plain, drafters, onRound });
    this.answer = null;
    this.round = null; // that is pointed at
    this.drawnAt = 0;
    root.addEventListener("pointermove", (event) => {
      const chart = event.target.closest?.("svg.rounds");
      if (chart) this.point(Math.floor((event.clientX - chart.getBoundingClientRect().left) / STEP));
    });
    root.addEventListener("pointerleave", () => this.point(null));
    root.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step && event.target.closest(".scroll")) {
        event.preventDefault();
        this.point((this.round ?? (step > 0 ? -1 : this.answer.rounds.length)) + step);
      }
    });
  }

  show(answer) {
    if (this.answer !== answer) this.round = null;
    this.answer = answer;
    this.draw();
  }

  /** The answer has gone on. */
  update(answer, isLast) {
    if (answer === this.answer && (isLast || performance.now() - this.drawnAt > OFTEN)) this.draw();
  }

  /** Show a round; null for none. */
  point(round) {
    const known = round !== null && this.answer?.rounds[round] ? round : null;
    if (known === this.round) return;
    this.round = known;
    this.onRound(this.answer, known);
    this.draw();
  }

  draw() {
    this.drawnAt = performance.now();
    const fresh = document.createDocumentFragment();
    const { answer } = this;
    if (!answer?.nTokens) fresh.append(this.idle());
    else fresh.append(this.speed(answer), this.shares(answer), this.rounds(answer), this.positions(answer), this.details(answer));
    const scroll = this.root.querySelector(".scroll");
    const isAtEnd = !scroll || scroll.scrollLeft > scroll.scrollWidth - scroll.clientWidth - 2 * STEP;
    morph(this.root, fresh);
    const now = this.root.querySelector(".scroll");
    if (now && isAtEnd) now.scrollLeft = now.scrollWidth;
    this.root.querySelector(".cursor")?.setAttribute("x", (this.round ?? -9) * STEP - 1);
  }

  /** What is known before anything was asked. */
  idle() {
    const plain = this.plain();
    return make("section", {}, make("h3", {}, "Drafters"),
      make("ul", { class: "legend" }, ...this.drafters().map((name) => make("li", {}, make("span", { class: `swatch c${this.colourOf(name)}` }), make("span", {}, name)))),
      make("p", { class: "faint" }, this.drafters().length ? "They propose tokens, and the planner decides in every round how many are worth a check." : "This server was started without drafters: every token is the model’s alone."),
      plain && make("p", { class: "faint" }, `Without them it expects ${plain.toFixed(1)} tokens per second.`));
  }

  speed(answer) {
    const speed = speedOf(answer);
    const plain = plainOf(answer), times = timesPlain(answer);
    const most = Math.max(speed ?? 0, ...(plain ?? []));
    const bar = (label, value, kind) => value && make("div", { class: "bar" }, make("span", {}, label),
      svg("svg", { height: 8, "aria-hidden": true }, svg("rect", { class: "track", width: "100%", height: 8, rx: 4 }), svg("rect", { class: kind, width: percent(value, most), height: 8, rx: 4 })),
      make("b", {}, value.toFixed(1)));
    const ratio = times && make("p", { class: speed < plain[0] ? "ratio slower" : "ratio" }, make("b", {}, `${times}×`), " the plain speed");
    const source = answer.plainSpeed ? "Plain: as measured just before, with the same seed."
      : plain ? "Plain: what the last rounds without drafts took. Compare measures it."
      : answer.timings ? "The plain speed is not known: there were few rounds without drafts, or the machine is busy. Compare measures it." : "";
    return make("section", { class: "speed" },
      make("p", { class: "big" }, make("b", speed ? {} : { class: "none" }, speed ? speed.toFixed(1) : "–"), " tokens per second"), ratio,
      bar("this answer", speed, "own"), plain && bar("plain", (plain[0] + plain[1]) / 2, "plain"),
      make("p", { class: "faint" }, source));
  }

  shares(answer) {
    const drafted = [...tokensByDrafter(answer)].sort(([one], [other]) => this.colourOf(one) - this.colourOf(other));
    const own = answer.nTokens - drafted.reduce((sum, [, n]) => sum + n, 0);
    const all = [...drafted.map(([name, n]) => [name, n, `c${this.colourOf(name)}`]), ["the model alone", own, "alone"]];
    let x = 0;
    const segments = all.filter(([, n]) => n).map(([name, n, kind]) => {
      const width = (100 * n) / answer.nTokens;
      const rect = svg("rect", { class: kind, x: `${x}%`, width: `${width}%`, height: 12 });
      x += width;
      return rect;
    });
    return make("section", {}, make("h3", {}, "Who proposed it"),
      svg("svg", { class: "shares", height: 12, "aria-hidden": true }, ...segments),
      make("ul", { class: "legend" }, ...all.map(([name, n, kind]) =>
        make("li", {}, make("span", { class: `swatch ${kind}` }), make("span", {}, name), make("span", { class: "faint" }, plural(n, "token")), make("b", {}, percent(n, answer.nTokens))))));
  }

  rounds(answer) {
    const { rounds } = answer;
    const most = Math.max(4, ...rounds.map(([nDrafted]) => nDrafted));
    const unit = (HEIGHT - 8) / most;
    const paths = new Map([["rejected", []]]);
    rounds.forEach(([nDrafted, nAccepted, place], i) => {
      const box = (from, to) => `M${i * STEP + 1} ${(HEIGHT - 4 - from * unit).toFixed(1)}v${((from - to) * unit).toFixed(1)}h${BAR}v${((to - from) * unit).toFixed(1)}z`;
      if (nDrafted > nAccepted) paths.get("rejected").push(box(nAccepted, nDrafted));
      if (nAccepted) {
        const kind = `c${this.colourOf(answer.drafters[place])}`;
        paths.set(kind, [...(paths.get(kind) ?? []), box(0, nAccepted)]);
      }
    });
    const width = Math.max(rounds.length * STEP, 1);
    const emitted = rounds.map((_, i) => `M${i * STEP + 1} ${HEIGHT - 2}h${BAR}`).join("");
    const nDrafted = rounds.reduce((sum, [n]) => sum + n, 0), nAccepted = rounds.reduce((sum, [, n]) => sum + n, 0);
    const at = this.round === null ? null : rounds[this.round];
    const summary = at
      ? `Round ${this.round + 1}: ${at[0] ? `${at[0]} drafted, ${at[1]} accepted${at[1] ? `, by ${answer.drafters[at[2]]}` : ""}` : "no draft"}`
      : rounds.length ? `${plural(answer.nTokens, "token")} in ${plural(rounds.length, "round")}, ${nAccepted} of ${plural(nDrafted, "draft token")} accepted` : "No rounds yet";
    return make("section", {}, make("h3", {}, "Draft lengths, round by round"),
      make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `Draft lengths. ${summary}. Arrow keys go through the rounds.` },
        svg("svg", { class: "rounds", width, height: HEIGHT, "aria-hidden": true },
          svg("rect", { class: "cursor", width: STEP, height: HEIGHT, y: 0, x: -99, rx: 2 }),
          svg("path", { class: "emitted", d: emitted }),
          ...[...paths].map(([kind, boxes]) => svg("path", { class: kind, d: boxes.join("") })))),
      make("p", { class: "faint summary" }, summary),
      make("p", { class: "key" }, ...["accepted", "rejected", "the model’s own"].map((text, i) =>
        make("span", {}, make("span", { class: `swatch ${["accepted", "rejected", "emitted"][i]}` }), text))));
  }

  positions(answer) {
    const known = acceptance(answer);
    const charts = (known ?? []).map(({ name, offered, accepted }) => {
      const kind = `c${this.colourOf(name)}`;
      const shown = offered.slice(0, 16).map((n, i) => [i, n, accepted[i] ?? 0]);
      const width = 100 / 16;
      return make("div", { class: "positions" },
        make("p", {}, make("span", {}, name), make("b", {}, percent(accepted.reduce((sum, n) => sum + n, 0), offered.reduce((sum, n) => sum + n, 0)))),
        svg("svg", { height: 46, role: "img", "aria-label": shown.map(([i, n, a]) => `position ${i + 1}: ${percent(a, n)}`).join(", ") },
          ...shown.flatMap(([i, n, a]) => [
            svg("rect", { class: "track", x: `${i * width}%`, width: `${width * 0.8}%`, y: 0, height: 32, rx: 2 }),
            svg("rect", { class: kind, x: `${i * width}%`, width: `${width * 0.8}%`, y: 32 - (32 * a) / n, height: (32 * a) / n, rx: 2 }, svg("title", {}, `position ${i + 1}: ${a} of ${n} accepted`)),
            svg("text", { x: `${(i + 0.4) * width}%`, y: 44 }, String(i + 1)),
          ])));
    });
    return make("section", {}, make("h3", {}, "Acceptance by position"), ...(charts.length ? charts : [make("p", { class: "faint" }, known ? "Nothing was drafted." : "Told when the answer is complete.")]));
  }

  details(answer) {
    const t = answer.timings;
    if (!t) return make("section");
    const rows = [
      ["Prompt", `${plural(t.prompt_n, "token")}${t.prompt_per_second ? `, ${t.prompt_per_second.toFixed(0)} per second` : ""}`],
      ["Reused of the prompt", t.cache_n ? plural(t.cache_n, "token") : null],
      ["Decoding", `${(t.predicted_ms / 1000).toFixed(2)} s`],
      ...Object.entries(answer.speculation?.drafters ?? {}).map(([name, stats]) => [`Of the prompt, ${name}`, stats.begin_ms >= 1 ? `${stats.begin_ms.toFixed(0)} ms` : null]),
      ...Object.entries(answer.speculation?.drafters ?? {}).map(([name, stats]) => [`Drafting, ${name}`, `${(stats.draft_ms ?? 0).toFixed(1)} ms`]),
    ].filter(([, value]) => value);
    return make("section", {}, make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
  }
}
