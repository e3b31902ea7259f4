// The words of code in a few kinds, enough to read by: comments, texts, numbers, keywords. Of a language that is not known none.

const FAMILIES = [ // names of languages, what begins a comment, and texts that may go on over lines
  ["bash dockerfile make makefile perl pl py python r rb ruby sh shell toml yaml yml zsh", /#.*/y, /"""|'''/y],
  ["c c# c++ cpp cs csharp css dart go h hpp java javascript js json json5 jsx kotlin kt php rs rust scala swift ts tsx typescript zig", /\/\/.*/y, /\/\*|`/y],
  ["haskell hs lua sql", /--.*/y, /\/\*/y],
];
const WORDS = new Set(
  ("abstract alter and any as assert async await begin bool boolean break by byte case catch chan char class const continue create def default " +
    "defer del delete do double drop elif else end enum except export extends extern false False final finally float fn for foreach from func " +
    "function global go goto group having if impl implements import in inner insert int interface into is join lambda left let limit local long " +
    "loop map match mod module mut namespace new nil None nonlocal not null on or order override package pass private protected pub public raise " +
    "range return select self set short signed sizeof static string struct super switch table template then this throw trait true True try type " +
    "typedef typename union unsigned unsafe update use using val values var virtual void volatile where while with yield").split(" "),
);
const TEXT = /"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'/y, OF_ONE = /"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)'/y; // where 'a is a name
const NUMBER = /\d[\w.]*/y, WORD = /[\p{L}_$][\p{L}\d_$]*/uy, OTHER = /[^\p{L}\d_$"'#/\-`]+|[^]/uy;
const ENDS = { "/*": "*/" }; // others end as they begin

/** A function that cuts a line of code after another into pieces of text, [kind or null, length], for a language by its name. */
export function cutter(language) {
  const name = language.toLowerCase();
  const [, comment, opening] = FAMILIES.find(([names]) => names.split(" ").includes(name)) ?? [];
  const text = ["haskell", "hs", "rs", "rust"].includes(name) ? OF_ONE : TEXT;
  let open = null; // the mark that ends what an earlier line has begun
  return (line) => {
    if (!comment) return [[null, line.length]];
    const pieces = [];
    const at = (pattern, from) => ((pattern.lastIndex = from), pattern.exec(line)?.[0]);
    for (let i = 0; i < line.length; i += pieces.at(-1)[1]) {
      const mark = open ? "" : at(opening, i);
      if (open ?? mark) {
        open ??= ENDS[mark] ?? mark;
        const end = line.indexOf(open, i + mark.length);
        pieces.push([open === "*/" ? "comment" : "string", (end < 0 ? line.length : end + open.length) - i]);
        if (end >= 0) open = null;
        continue;
      }
      const [kind, piece] = [["comment", comment], ["string", text], ["number", NUMBER], ["keyword", WORD], [null, OTHER]]
        .map(([each, pattern]) => [each, at(pattern, i)]).find(([, found]) => found);
      const isOther = kind === "keyword" && !WORDS.has(name === "sql" ? piece.toLowerCase() : piece);
      pieces.push([isOther ? null : kind, piece.length]);
    }
    return pieces;
  };
}
