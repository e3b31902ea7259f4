// Markdown as elements. Every piece of text is handed to `paint` with its place in the source, so that it can be tinted by who
// proposed it. What is no Markdown that is known here, HTML included, is text. Each block finds out for itself whether it is read
// from the right.

import { cutter } from "./code.js";
import { make } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+|$)/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const QUOTE = /^ {0,3}> ?/;
const COLUMNS = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const BLANK = /^\s*$/;

/** The lines of a source from an offset on: their text and where it begins. */
export function linesOf(source, from = 0) {
  let start = from;
  return source.slice(from).split("\n").map((text) => {
    const line = { text, start };
    start += text.length + 1;
    return line;
  });
}

const after = (line, n) => ({ text: line.text.slice(n), start: line.start + n });

/** Blocks as elements in `parent`; returns where each of them begins. `isOpen`: the source goes on. */
export function blocks(lines, parent, paint, isOpen = false) {
  const starts = [];
  for (let i = 0; i < lines.length; ) {
    if (BLANK.test(lines[i].text)) {
      i++;
      continue;
    }
    starts.push(lines[i].start);
    i = block(lines, i, parent, paint, isOpen);
  }
  return starts;
}

function block(lines, i, parent, paint, isOpen) {
  const line = lines[i];
  let match;
  if ((match = FENCE.exec(line.text))) return fence(lines, i, match, parent, paint);
  if ((match = HEADING.exec(line.text))) {
    const heading = parent.appendChild(make(`h${Math.min(match[1].length + 2, 6)}`, { dir: "auto" })); // below the page's own
    inline([after(line, match[0].length)], heading, paint, isOpen);
    return i + 1;
  }
  if (RULE.test(line.text)) {
    parent.append(make("hr"));
    return i + 1;
  }
  if (QUOTE.test(line.text)) {
    const quoted = [];
    for (; i < lines.length && (QUOTE.test(lines[i].text) || !isBlockStart(lines[i].text)); i++)
      quoted.push(after(lines[i], QUOTE.exec(lines[i].text)?.[0].length ?? 0));
    blocks(quoted, parent.appendChild(make("blockquote", { dir: "auto" })), paint, isOpen);
    return i;
  }
  if (ITEM.test(line.text)) return list(lines, i, parent, paint, isOpen);
  if (line.text.includes("|") && COLUMNS.test(lines[i + 1]?.text ?? "") && lines[i + 1].text.includes("-"))
    return table(lines, i, parent, paint);
  const first = i++;
  while (i < lines.length && !isBlockStart(lines[i].text)) i++;
  inline(lines.slice(first, i).map((each) => after(each, /^\s*/.exec(each.text)[0].length)), parent.appendChild(make("p", { dir: "auto" })), paint, isOpen);
  return i;
}

const isBlockStart = (text) => [BLANK, FENCE, HEADING, RULE, QUOTE, ITEM].some((start) => start.test(text));

function fence(lines, i, [, marks, language], parent, paint) {
  const code = make("code"), cut = cutter(language);
  const closes = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}\\s*$`);
  const first = ++i;
  while (i < lines.length && !closes.test(lines[i].text)) i++;
  lines.slice(first, i).forEach((line, n) => {
    if (n) code.append("\n");
    let { start } = line;
    for (const [kind, length] of cut(line.text)) {
      paint(kind ? code.appendChild(make("span", { class: kind })) : code, start, start + length);
      start += length;
    }
  });
  const copy = make("button", { type: "button", class: "quiet small", "data-copy": true }, "Copy");
  parent.append(make("figure", { dir: "ltr" }, make("figcaption", {}, make("span", {}, language || "text"), copy), make("pre", { tabindex: 0 }, code)));
  return i + 1;
}

function list(lines, i, parent, paint, isOpen) {
  const [, indent, mark] = ITEM.exec(lines[i].text);
  const isOrdered = /\d/.test(mark);
  const element = parent.appendChild(make(isOrdered ? "ol" : "ul", { dir: "auto", start: isOrdered && parseInt(mark) !== 1 ? parseInt(mark) : null }));
  let isLoose = false, isAfterBlank = false;
  const items = [];
  while (i < lines.length) {
    const match = ITEM.exec(lines[i].text);
    if (!match || match[1].length > indent.length + 1 || /\d/.test(match[2]) !== isOrdered || RULE.test(lines[i].text)) break;
    isLoose ||= isAfterBlank;
    isAfterBlank = false;
    const width = match[0].length;
    const item = [after(lines[i++], width)];
    for (; i < lines.length; i++) {
      const text = lines[i].text;
      const depth = /^\s*/.exec(text)[0].length;
      if (BLANK.test(text)) isAfterBlank = true;
      else if (depth >= Math.min(width, indent.length + 2)) isAfterBlank = false;
      else if (isAfterBlank || isBlockStart(text)) break;
      item.push(after(lines[i], Math.min(depth, width)));
    }
    items.push(item);
  }
  for (const item of items) {
    const task = /^\[([ xX])\]\s+/.exec(item[0].text);
    if (task) item[0] = after(item[0], task[0].length);
    const box = task && make("input", { type: "checkbox", disabled: true, checked: task[1] !== " " });
    const li = element.appendChild(make("li", task ? { class: "task" } : {}, box));
    blocks(item, li, paint, isOpen);
    if (!isLoose) for (const p of [...li.children].filter((child) => child.nodeName === "P")) p.replaceWith(...p.childNodes);
  }
  return i;
}

function cells(line) {
  const found = [];
  const ends = /\\.|`[^`]*`|(\|)/g;
  let from = /^\s*\|?/.exec(line.text)[0].length;
  ends.lastIndex = from;
  for (let match; (match = ends.exec(line.text)); )
    if (match[1]) {
      found.push({ text: line.text.slice(from, match.index), start: line.start + from });
      from = match.index + 1;
    }
  if (!BLANK.test(line.text.slice(from))) found.push(after(line, from));
  return found.map((cell) => after({ ...cell, text: cell.text.trimEnd() }, /^\s*/.exec(cell.text)[0].length));
}

function table(lines, i, parent, paint) {
  const sides = cells(lines[i + 1]).map(({ text }) => (text.endsWith(":") ? (text.startsWith(":") ? "center" : "end") : null));
  const row = (line, name) =>
    make("tr", {}, ...cells(line).map((cell, n) => {
      const element = make(name, { class: sides[n] });
      inline([cell], element, paint);
      return element;
    }));
  const body = make("tbody");
  const head = make("thead", {}, row(lines[i], "th"));
  for (i += 2; i < lines.length && lines[i].text.includes("|") && !BLANK.test(lines[i].text); i++) body.append(row(lines[i], "td"));
  parent.append(make("div", { class: "table", tabindex: 0 }, make("table", { dir: "auto" }, head, body)));
  return i;
}

// Inline

const PUNCTUATION = /[!-/:-@[-`{-~]/;
const CODE = /(`+)(?!`)([^]*?[^`])\1(?!`)/y;
const MARKS = [
  ["strong", 2, /\*\*(?=\S)([^]*?\S)\*\*(?!\*)/y],
  ["strong", 2, /(?<!\w)__(?=\S)([^]*?\S)__(?!\w)/y],
  ["em", 1, /\*(?=[^\s*])([^]*?[^\s*])\*(?!\*)/y],
  ["em", 1, /(?<!\w)_(?=[^\s_])([^]*?[^\s_])_(?!\w)/y],
  ["del", 2, /~~(?=\S)([^]*?\S)~~/y],
];
const OPEN = [["code", 1, /`(?!`)([^`\n]+)$/y], ["strong", 2, /\*\*(?=[^\s*])([^*]+)$/y]];
const LINK = /!?\[((?:[^[\]]|\[[^[\]]*\])*)\]\(\s*<?([^()\s<>]*(?:\([^()\s<>]*\)[^()\s<>]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
const ADDRESS = /<?(https?:\/\/[^\s<>()[\]]*[^\s<>()[\].,:;"'!?*_~`])>?/y;
const MAY_LEAD_TO = /^(?:https?:\/\/|mailto:)/i;

const anchor = (href) => make("a", { href, target: "_blank", rel: "noopener noreferrer" });

const sticky = (pattern, text, at) => {
  pattern.lastIndex = at;
  return pattern.exec(text);
};

function inline(lines, parent, paint, isOpen = false) {
  const text = lines.map((line) => line.text).join("\n");
  const ends = []; // of each line, in `text`
  lines.reduce((end, line) => (ends.push(end + line.text.length), ends.at(-1) + 1), 0);
  /** A stretch of `text`, painted line by line. */
  const put = (element, from, to) => {
    for (let n = ends.findIndex((end) => from <= end); from < to; n++) {
      const end = Math.min(ends[n], to);
      const shift = lines[n].start + lines[n].text.length - ends[n];
      if (end > from) paint(element, from + shift, end + shift);
      if (end < to) element.append("\n");
      from = end + 1;
    }
  };
  const span = (element, from, to) => {
    let plain = from;
    for (let i = from; i < to; ) {
      const char = text[i];
      let match, next;
      const within = (found, isMeant = () => true) => found && i + found[0].length <= to && isMeant(found) && (match = found);
      if (char === "\\" && PUNCTUATION.test(text[i + 1] ?? "")) {
        put(element, plain, i);
        plain = i + 1;
        i += 2;
        continue;
      }
      if ((char === "\\" || char === " ") && /^(?:\\| {2,})\n/.test(text.slice(i, to))) {
        put(element, plain, i);
        element.append(make("br"));
        plain = i = text.indexOf("\n", i) + 1;
        continue;
      }
      if (char === "`" && within(sticky(CODE, text, i))) {
        put(element, plain, i);
        put(element.appendChild(make("code")), i + match[1].length, i + match[0].length - match[1].length);
      } else if ((char === "[" || char === "!") && within(sticky(LINK, text, i), (found) => MAY_LEAD_TO.test(found[2]))) {
        put(element, plain, i);
        const start = i + match[0].indexOf("[") + 1;
        next = [element.appendChild(anchor(match[2])), start, start + match[1].length];
      } else if ((char === "h" || char === "<") && !/\w/.test(text[i - 1] ?? "") && within(sticky(ADDRESS, text, i))) {
        put(element, plain, i);
        const start = i + match[0].indexOf("h");
        put(element.appendChild(anchor(match[1])), start, start + match[1].length);
      } else if ("*_~".includes(char)) {
        for (const [name, n, pattern] of MARKS)
          if (within(sticky(pattern, text, i))) {
            put(element, plain, i);
            next = [element.appendChild(make(name)), i + n, i + match[0].length - n];
            break;
          }
      }
      if (!match && isOpen && to === text.length && "*`".includes(char))
        for (const [name, n, pattern] of OPEN)
          if (within(sticky(pattern, text, i))) {
            put(element, plain, i);
            const opened = element.appendChild(make(name));
            if (name === "code") put(opened, i + n, to);
            else next = [opened, i + n, to];
            break;
          }
      if (match) {
        if (next) span(...next);
        plain = i += match[0].length;
      } else i += 1;
      if (!match && "*_~`".includes(char)) while (text[i] === char) i++; // the rest of a run of marks opens nothing either
    }
    put(element, plain, to);
  };
  span(parent, 0, text.length);
}
