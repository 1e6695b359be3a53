/**
 * Colours for code: strings, comments, numbers and the words of a language, found by one pattern for each
 * family of languages. It is no parser, and need not be one: what it takes for something else is still the
 * same text.
 */

export interface Part {
  kind: "comment" | "string" | "number" | "word" | "name" | null;
  text: string;
}

/** Letters of which each part has a colour; more would take longer than a person waits. */
const MOST = 50_000;

const STRING = /"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'/.source;
const NUMBER = /\b(?:0[xob][\da-f_]+|\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)\b/.source;
const NAME = /[A-Za-z_$][\w$]*/.source;

interface Family {
  comment: string;
  string: string;
  words: ReadonlySet<string>;
}

const words = (text: string): ReadonlySet<string> => new Set(text.split(" "));

const SLASHES = /\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|(?![\s\S]))/.source;
const HASH = /#[^\n]*/.source;

const C_LIKE: Family = {
  comment: SLASHES,
  string: `\`(?:\\\\.|[^\`\\\\])*\`|${STRING}`,
  words: words(
    "abstract as async await bool boolean break case catch char class const continue crate debugger default defer delete do double else enum export extends extern false final finally float fn for foreach from func function go goto if impl implements import in instanceof int interface internal is let long loop map match mod mut namespace new nil null nullptr of override package private protected pub public range readonly ref return self short sizeof static string struct super switch this throw throws trait true try type typeof undefined union unsafe unsigned use using var virtual void volatile where while yield",
  ),
};
const PYTHON: Family = {
  comment: HASH,
  string: `[rbfu]{0,2}(?:"""[\\s\\S]*?(?:"""|(?![\\s\\S]))|'''[\\s\\S]*?(?:'''|(?![\\s\\S]))|${STRING})`,
  words: words(
    "and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try type while with yield",
  ),
};
const SHELL: Family = {
  comment: /(?<=^|\s)#[^\n]*/.source,
  string: STRING,
  words: words(
    "case cd do done echo elif else esac exit export fi for function if in local read return set shift sudo then unset until while",
  ),
};
const SQL: Family = {
  comment: /--[^\n]*|\/\*[\s\S]*?(?:\*\/|(?![\s\S]))/.source,
  string: STRING,
  words: words(
    "add all alter and as asc begin between by case check column commit constraint create cross default delete desc distinct drop else end exists foreign from full group having if in index inner insert into is join key left like limit not null offset on or order outer primary references returning right rollback select set table then union unique update using values view when where with",
  ),
};
const DATA: Family = { comment: HASH, string: STRING, words: words("true false null yes no on off") };
const JSON_LIKE: Family = { comment: SLASHES, string: STRING, words: words("true false null") };
const CSS: Family = {
  comment: /\/\*[\s\S]*?(?:\*\/|(?![\s\S]))/.source,
  string: STRING,
  words: words("important media supports import from to and not only"),
};
const MARKUP: Family = { comment: /<!--[\s\S]*?(?:-->|(?![\s\S]))/.source, string: STRING, words: words("") };

const FAMILIES: Record<string, Family> = {
  ...of(
    C_LIKE,
    "c cc cpp cs csharp dart go java javascript js jsx kotlin kt mjs php rs rust scala swift ts tsx typescript zig",
  ),
  ...of(PYTHON, "py python pyi rb ruby"),
  ...of(SHELL, "bash console sh shell zsh dockerfile make makefile"),
  ...of(SQL, "sql postgres sqlite mysql"),
  ...of(DATA, "toml yaml yml ini conf"),
  ...of(JSON_LIKE, "json jsonc json5"),
  ...of(CSS, "css scss less"),
  ...of(MARKUP, "html xml svg vue"),
};

function of(family: Family, names: string): Record<string, Family> {
  return Object.fromEntries(names.split(" ").map((name) => [name, family]));
}

const patterns = new Map<Family, RegExp>();

function patternOf(family: Family): RegExp {
  let found = patterns.get(family);
  if (found === undefined) {
    found = new RegExp(`(${family.comment})|(${family.string})|(${NUMBER})|(${NAME})`, "gim");
    patterns.set(family, found);
  }
  return found;
}

/** The parts of a code, in their order; one part if its language is not known. */
export function highlight(text: string, language: string): Part[] {
  const name = language.toLowerCase();
  const family = Object.hasOwn(FAMILIES, name) ? FAMILIES[name] : undefined;
  if (family === undefined || text.length > MOST) return [{ kind: null, text }];
  const isSql = family === SQL;
  const parts: Part[] = [];
  let done = 0;
  for (const found of text.matchAll(patternOf(family))) {
    const [whole, comment, string, number] = found;
    const end = found.index + whole.length;
    let kind: Part["kind"] = null;
    if (comment !== undefined) kind = "comment";
    else if (string !== undefined) kind = "string";
    else if (number !== undefined) kind = "number";
    else if (family.words.has(isSql ? whole.toLowerCase() : whole)) kind = "word";
    else if (text[end] === "(") kind = "name";
    if (kind === null) continue;
    if (found.index > done) parts.push({ kind: null, text: text.slice(done, found.index) });
    parts.push({ kind, text: whole });
    done = end;
  }
  if (done < text.length) parts.push({ kind: null, text: text.slice(done) });
  return parts;
}
