// What a comparison of plain and speculative decoding came to.

import { make, plural } from "./dom.js";
import { speedOf } from "./answer.js";

/** Where two texts differ first, or -1. */
export function firstDifference(one, other) {
  const n = Math.min(one.length, other.length);
  for (let i = 0; i < n; i++) if (one[i] !== other[i]) return i;
  return one.length === other.length ? -1 : n;
}

/** The verdict on a message that was answered plainly, too, as elements. */
export function verdictOn({ plain, answer }) {
  const sides = [plain, answer];
  if (sides.some((side) => side.status === "failed")) return [];
  const isRunning = (side) => side.status === "waiting" || side.status === "streaming";
  if (isRunning(plain)) return [make("p", { class: "faint" }, "First without drafts, so that each has the machine to itself …")];
  if (isRunning(answer)) return [make("p", { class: "faint" }, "Now with drafts, from the same seed …")];
  const speeds = sides.map(speedOf);
  const ratio = speeds[0] && speeds[1] ? speeds[1] / speeds[0] : null;
  const faster = ratio && make("span", {}, ratio >= 1.005 ? `${ratio.toFixed(2)} times as fast` : ratio > 0.98 ? "as fast" : `${ratio.toFixed(2)} of the speed`);
  const [one, other] = sides.map((side) => side.reasoning + side.text);
  const isStopped = sides.some((side) => side.status === "stopped");
  const at = isStopped ? firstDifference(one.slice(0, other.length), other.slice(0, one.length)) : firstDifference(one, other);
  if (at < 0) {
    const what = isStopped ? "identical as far as both go" : "identical";
    return [make("p", { class: "same" }, make("b", {}, what), `, ${plural(answer.nTokens, "token")}, `, faster)];
  }
  const excerpt = (text) => make("code", {}, text.slice(Math.max(at - 24, 0), at), make("mark", {}, text.slice(at, at + 24) || "(end)"));
  return [
    make("p", { class: "different" }, make("b", {}, "different"), ` from character ${at + 1} on. That is a bug; please report it.`),
    make("p", { class: "excerpts" }, excerpt(one), excerpt(other)),
  ];
}
