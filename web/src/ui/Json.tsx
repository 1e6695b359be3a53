/** A JSON value as text with colours, and its parts by their names. */
import { memo, type ReactNode } from "react";
import { CopyButton } from "./CopyButton";
import { sizeText } from "./size";

const TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)/gi;

/** Characters of which each part has a colour; more would take longer than a person waits. */
const MOST_COLOURED = 100_000;

/** Characters that are shown: a browser stands still with many more. All of them can be copied. */
const MOST_SHOWN = 300_000;

export const Json = memo(function Json({
  value,
  label = "JSON",
}: {
  value: unknown;
  label?: string;
}): ReactNode {
  const text = typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
  return (
    <section className="json" aria-label={label}>
      <CopyButton text={text} label={`Copy ${label}`} />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard */}
      <pre tabIndex={0}>
        <code>
          {typeof value === "string" || text.length > MOST_COLOURED
            ? text.slice(0, MOST_SHOWN)
            : coloured(text)}
        </code>
      </pre>
      {text.length > MOST_SHOWN && (
        <p className="muted json-more">
          The first {sizeText(MOST_SHOWN)} of {sizeText(text.length)}. Copy gives all of it.
        </p>
      )}
    </section>
  );
});

function coloured(text: string): ReactNode[] {
  const parts: ReactNode[] = [];
  let done = 0;
  for (const found of text.matchAll(TOKEN)) {
    const [whole, string, colon, word] = found;
    if (found.index > done) parts.push(text.slice(done, found.index));
    const kind =
      colon !== undefined ? "key" : string !== undefined ? "string" : word !== undefined ? "word" : "number";
    parts.push(
      <span key={found.index} className={`json-${kind}`}>
        {colon === undefined ? whole : string}
      </span>,
    );
    if (colon !== undefined) parts.push(colon);
    done = found.index + whole.length;
  }
  parts.push(text.slice(done));
  return parts;
}
