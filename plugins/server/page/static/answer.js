// An answer while it comes and after: its text, who proposed which part of it, and the rounds it took.
//
// `runs` are stretches of one origin: where they end in the text, the round, and the drafter's place in `drafters` (-1: the model
// alone). `rounds` are triples: tokens drafted, tokens accepted, the drafter's place.

export const newAnswer = () => ({
  text: "",
  reasoning: "",
  runs: [],
  rounds: [],
  drafters: [],
  pending: [], // what tokens said that was in no chunk's text yet, with round and drafter
  nTokens: 0,
  seconds: 0, // from the first token to the last one that came, of those after the first `nBefore`
  nBefore: 0, // tokens that an earlier request brought, which this one continues
  status: "waiting", // then "streaming", at last "done", "stopped" or "failed"
  finish: null,
  error: null,
  timings: null,
  speculation: null,
  plainSpeed: null, // that a comparison measured just before, in tokens per second
});

/** Get an answer that broke off ready to go on. */
export const resume = (answer) =>
  Object.assign(answer, { status: "waiting", finish: null, error: null, timings: null, speculation: null, seconds: 0, nBefore: answer.nTokens });

/** Add what a chunk of the stream brings. `now` is in seconds. */
export function addChunk(answer, chunk, now) {
  const choice = chunk.choices?.[0];
  const { content, reasoning_content: reasoning } = choice?.delta ?? {};
  const pieces = choice?.draft_origin ?? [];
  for (const piece of pieces) addPiece(answer, piece);
  if (reasoning) take(answer, reasoning, (text) => { answer.reasoning += text; });
  if (content) take(answer, content, (...piece) => addText(answer, ...piece));
  if (pieces.length || content || reasoning) {
    answer.status = "streaming";
    answer.startedAt ??= now;
    answer.seconds = now - answer.startedAt;
  }
  answer.finish = choice?.finish_reason ?? answer.finish;
  answer.timings = chunk.timings ?? answer.timings;
  answer.speculation = chunk.speculation ?? answer.speculation;
}

function addPiece(answer, { text, drafter, n_drafted: nDrafted }) {
  answer.nTokens += 1;
  if (nDrafted != null || !answer.rounds.length) answer.rounds.push([nDrafted ?? 0, 0, -1]);
  let place = -1;
  if (drafter != null) {
    place = answer.drafters.indexOf(drafter);
    if (place < 0) place = answer.drafters.push(drafter) - 1;
    const round = answer.rounds.at(-1);
    round[1] += 1;
    round[2] = place;
  }
  answer.pending.push([text, answer.rounds.length - 1, place]);
}

/** Find a text among what the tokens said, which may have come earlier and hold marks that belong to neither text nor reasoning. */
function take(answer, text, put) {
  let skipped = answer.pending.map(([each]) => each).join("").indexOf(text);
  if (skipped < 0) {
    put(text, 0, -1);
    return;
  }
  for (let left = text.length; left > 0; ) {
    const [piece, round, place] = answer.pending[0];
    const part = piece.slice(skipped, skipped + left);
    if (part) put(part, round, place);
    left -= part.length;
    if (skipped + part.length < piece.length) answer.pending[0][0] = piece.slice(skipped + part.length);
    else answer.pending.shift();
    skipped = Math.max(skipped - piece.length, 0);
  }
}

function addText(answer, text, round, place) {
  answer.text += text;
  const last = answer.runs.at(-1);
  if (last && last[2] === place && (place < 0 || last[1] === round)) last[0] = answer.text.length;
  else answer.runs.push([answer.text.length, round, place]);
}

/** Tokens per second: the server's own figure once it is there, before that as they come. */
export function speedOf(answer) {
  const reported = answer.timings?.predicted_per_second;
  return reported || (answer.seconds > 0.2 ? (answer.nTokens - answer.nBefore - 1) / answer.seconds : null);
}

/** What plain decoding would do, from and to in tokens per second: as measured by a comparison, or in the last rounds without drafts. */
export function plainOf(answer) {
  return answer.plainSpeed ? [answer.plainSpeed, answer.plainSpeed] : (answer.speculation?.plain_per_second_range ?? null);
}

/** How many times as fast as that an answer was, in words; null where it is not known. */
export function timesPlain(answer) {
  const speed = speedOf(answer), plain = plainOf(answer);
  if (!speed || !plain) return null;
  const [least, most] = plain.map((each) => (speed / each).toFixed(2)).reverse();
  return least === most ? least : `${least} to ${most}`;
}

/** How many tokens each drafter proposed that were accepted, by name. */
export function tokensByDrafter(answer) {
  const found = new Map();
  for (const [, nAccepted, place] of answer.rounds) {
    const name = answer.drafters[place];
    if (name !== undefined) found.set(name, (found.get(name) ?? 0) + nAccepted);
  }
  return found;
}

/** By position in a draft, how often each drafter offered something there and was right; null until the server tells. */
export function acceptance(answer) {
  if (!answer.speculation) return null; // from its stream alone a tree's positions are not known
  const drafters = Object.entries(answer.speculation.drafters).filter(([, stats]) => stats.drafted);
  return drafters.map(([name, stats]) => ({ name, offered: stats.offered_by_position, accepted: stats.accepted_by_position }));
}
