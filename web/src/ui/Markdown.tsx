/**
 * Markdown as React elements, made from the parser's tokens. No HTML is ever written: what a model says
 * cannot become part of the page, so there is nothing to clean. Raw HTML shows as the text that it is, and
 * pictures as links, as loading one would tell its server that the person reads this; one that is in the text
 * itself is shown.
 */
import { lexer, type Token, type Tokens } from "marked";
import { Fragment, memo, type ReactNode, useEffect, useMemo, useState } from "react";
import { CopyButton } from "./CopyButton";

const MOST_LETTERS = 50_000;
const MOST_MARKS = 2000;

/** More lists and quotations in one another, at the beginning of a line, than anybody writes. */
const DEEP = /^(?:[ \t]*(?:>|[-+*][ \t]|\d{1,9}[.)][ \t])){20}/m;

/** Nothing for a text that would hold the page: the parser's time grows with the square of the marks in a paragraph. */
function parsed(text: string): Token[] | null {
  if (text.length > MOST_LETTERS || DEEP.test(text)) return null;
  const isFull = (paragraph: string): boolean => (paragraph.match(/[*_~`[\]<]/g)?.length ?? 0) > MOST_MARKS;
  return text.split(/\n[ \t]*\n/).some(isFull) ? null : lexer(text, { gfm: true });
}

const BLOCKS = new Set(["heading", "code", "list", "table", "paragraph", "blockquote"]);

/** What it says without its marks, for places where there is only text. */
export function plainText(text: string): string {
  const words = (tokens: readonly Token[]): string =>
    tokens.map((one) => (BLOCKS.has(one.type) ? `${wordsOf(one)} ` : wordsOf(one))).join("");
  const wordsOf = (token: Token): string => {
    if (token.type === "list")
      return (token as Tokens.List).items.map((one) => ` ${words(one.tokens)}`).join("");
    if (token.type === "table") {
      const { header, rows } = token as Tokens.Table;
      return [...header, ...rows.flat()].map((one) => ` ${words(one.tokens)}`).join("");
    }
    return "tokens" in token && token.tokens ? words(token.tokens) : "text" in token ? token.text : " ";
  };
  const tokens = parsed(text);
  return tokens === null ? text : words(tokens).replace(/\s+/g, " ").trim();
}

export const Markdown = memo(function Markdown({ text }: { text: string }): ReactNode {
  const tokens = useMemo(() => parsed(text), [text]);
  if (tokens === null) return <pre className="prose">{text}</pre>;
  return <div className="prose">{tokens.map((token, n) => blockWithKey(token, n))}</div>;
});

const blockWithKey = (token: Token, n: number): ReactNode => <Block key={n} token={token} />;

/** One block; while text streams in, only the last one changes. */
const Block = memo(
  function Block({ token }: { token: Token }): ReactNode {
    return block(token);
  },
  (before, after) => before.token.type === after.token.type && before.token.raw === after.token.raw,
);

function block(token: Token): ReactNode {
  switch (token.type) {
    case "heading": {
      const { depth, tokens } = token as Tokens.Heading;
      const Tag = `h${Math.min(6, depth + 2)}` as "h3";
      return <Tag>{inline(tokens)}</Tag>;
    }
    case "paragraph":
      return <p>{inline((token as Tokens.Paragraph).tokens)}</p>;
    case "text": {
      const { tokens, text } = token as Tokens.Text;
      return tokens ? inline(tokens) : decode(text);
    }
    case "code": {
      const { text, lang } = token as Tokens.Code;
      return <Code text={text} language={lang?.split(/\s/)[0] ?? ""} />;
    }
    case "blockquote":
      return <blockquote dir="auto">{(token as Tokens.Blockquote).tokens.map(blockWithKey)}</blockquote>;
    case "list":
      return <List list={token as Tokens.List} />;
    case "table":
      return <Table table={token as Tokens.Table} />;
    case "hr":
      return <hr />;
    case "html":
      return <p>{(token as Tokens.HTML).text}</p>;
    case "space":
    case "def":
      return null;
    default:
      return "raw" in token ? <p>{token.raw}</p> : null;
  }
}

function List({ list }: { list: Tokens.List }): ReactNode {
  const items = list.items.map((item, n) => (
    // biome-ignore lint/suspicious/noArrayIndexKey: the items of a text have no other name
    <li key={n} className={item.task ? "task" : undefined}>
      {item.task && <input type="checkbox" checked={item.checked ?? false} disabled aria-label="Task" />}
      {item.tokens.filter((token) => token.type !== "checkbox").map(blockWithKey)}
    </li>
  ));
  return list.ordered ? (
    <ol dir="auto" start={Number(list.start) || 1}>
      {items}
    </ol>
  ) : (
    <ul dir="auto">{items}</ul>
  );
}

function Table({ table }: { table: Tokens.Table }): ReactNode {
  const cell = (one: Tokens.TableCell, Tag: "th" | "td", n: number): ReactNode => (
    <Tag
      key={n}
      className={one.align ? `align-${one.align}` : undefined}
      scope={Tag === "th" ? "col" : undefined}
    >
      {inline(one.tokens)}
    </Tag>
  );
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard
    <section className="table-scroll" dir="auto" tabIndex={0} aria-label="Table">
      <table>
        <thead>
          <tr>{table.header.map((one, n) => cell(one, "th", n))}</tr>
        </thead>
        <tbody>
          {table.rows.map((row, n) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: the rows of a text have no other name
            <tr key={n}>{row.map((one, m) => cell(one, "td", m))}</tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

export function Code({ text, language }: { text: string; language: string }): ReactNode {
  return (
    <figure className="code">
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={text} label="Copy code" />
      </figcaption>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard */}
      <pre tabIndex={0}>
        <code>
          <Coloured text={text} language={language} />
        </code>
      </pre>
    </figure>
  );
}

type Highlight = (text: string, language: string) => { kind: string | null; text: string }[];

/** Code, in colours as soon as what finds them is loaded. */
function Coloured({ text, language }: { text: string; language: string }): ReactNode {
  const [highlight, setHighlight] = useState<Highlight | null>(null);
  useEffect(() => {
    if (!language) return;
    import("./highlight").then(
      (module) => setHighlight(() => module.highlight),
      () => {}, // without colours it is the same code
    );
  }, [language]);
  const parts = useMemo(() => highlight?.(text, language) ?? null, [highlight, text, language]);
  if (parts === null) return text;
  return parts.map((part, n) =>
    part.kind === null ? (
      part.text
    ) : (
      // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a text have no other name
      <span key={n} className={`code-${part.kind}`}>
        {part.text}
      </span>
    ),
  );
}

const IN_TEXT = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;

function inline(tokens: Token[] | undefined): ReactNode {
  // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a text have no other name
  return tokens?.map((token, n) => <Fragment key={n}>{span(token)}</Fragment>);
}

function span(token: Token): ReactNode {
  switch (token.type) {
    case "strong":
      return <strong>{inline(token.tokens)}</strong>;
    case "em":
      return <em>{inline(token.tokens)}</em>;
    case "del":
      return <del>{inline(token.tokens)}</del>;
    case "codespan":
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "br":
      return <br />;
    case "link": {
      const { href, tokens } = token as Tokens.Link;
      return <SafeLink href={href}>{inline(tokens)}</SafeLink>;
    }
    case "image": {
      const { href, text } = token as Tokens.Image;
      if (IN_TEXT.test(href)) return <img src={href} alt={text} />;
      return <SafeLink href={href}>{text || href}</SafeLink>;
    }
    case "escape":
      return (token as Tokens.Escape).text;
    case "text": {
      const { tokens, text } = token as Tokens.Text;
      return tokens ? inline(tokens) : decode(text);
    }
    case "html":
      return (token as Tokens.HTML).text;
    default:
      return token.raw;
  }
}

const SAFE = new Set(["http:", "https:", "mailto:"]);

/** A link that leads out of the page and tells nobody where it came from; not one that runs a script. */
export function SafeLink({ href, children }: { href: string; children: ReactNode }): ReactNode {
  let url: URL;
  try {
    url = new URL(href, location.href);
  } catch {
    return children;
  }
  if (!SAFE.has(url.protocol)) return children;
  return (
    <a href={url.href} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

const ENTITIES: Record<string, string> = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
  nbsp: "\u00a0",
  ndash: "–",
  mdash: "—",
  hellip: "…",
  copy: "©",
  euro: "€",
  deg: "°",
  times: "×",
  rarr: "→",
  larr: "←",
};

/** Markdown lets characters be written as in HTML. */
function decode(text: string): string {
  return text.replace(/&(#x[\da-f]{1,6}|#\d{1,7}|[a-z]+);/gi, (whole, name: string) => {
    if (!name.startsWith("#")) return ENTITIES[name] ?? whole;
    const code = /^#x/i.test(name) ? Number.parseInt(name.slice(2), 16) : Number(name.slice(1));
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}
