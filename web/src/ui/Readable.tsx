/** Data for people: a list of alike objects as a table, an object as terms with their values, the rest as text. */
import type { ReactNode } from "react";
import { humanName, isObject } from "../forms/schema";
import { Json } from "./Json";
import { Linked } from "./Linked";

/** Of lists, and fields of objects; fewer of those that are inside another. A browser stands still with many more. */
const MOST_ROWS = 50;
const MOST_INSIDE = 20;
const MOST_DEPTH = 3;
const MOST_LETTERS = 10_000;

export function Readable({ value, depth = 0 }: { value: unknown; depth?: number }): ReactNode {
  if (value === null || value === undefined) return <span className="muted">none</span>;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string" && value.length > MOST_LETTERS) return <Json value={value} label="text" />;
  if (typeof value === "string" || typeof value === "number")
    return (
      <span className="data-text">
        <Linked text={String(value)} />
      </span>
    );
  if (depth >= MOST_DEPTH) return <Json value={value} />;
  if (Array.isArray(value)) return <ListView list={value} depth={depth} />;
  const fields = Object.entries(value);
  if (fields.length > (depth === 0 ? MOST_ROWS : MOST_INSIDE)) return <Json value={value} />;
  return (
    <dl className="data-terms">
      {fields.map(([name, one]) => (
        <div key={name} className={isPlain(one) ? "data-pair" : "data-pair data-pair-tall"}>
          <dt>{humanName(name)}</dt>
          <dd>
            <Readable value={one} depth={depth + 1} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

function ListView({ list, depth }: { list: unknown[]; depth: number }): ReactNode {
  if (list.length === 0) return <span className="muted">none</span>;
  if (list.every(isPlain)) return <Readable value={list.map(cellText).join(", ")} />;
  const most = depth === 0 ? MOST_ROWS : MOST_INSIDE;
  const columns = [...new Set(list.flatMap((one) => (isObject(one) ? Object.keys(one) : [])))];
  if (!list.every((one) => isObject(one) && Object.values(one).every(isPlain))) {
    return (
      <ol className="data-list">
        {list.slice(0, most).map((one, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: data have no other name
          <li key={n}>
            <Readable value={one} depth={depth + 1} />
          </li>
        ))}
        {list.length > most && <li className="muted data-more">and {list.length - most} more</li>}
      </ol>
    );
  }
  if (columns.length > MOST_INSIDE) return <Json value={list} />;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard
    <section className="table-scroll" tabIndex={0} aria-label="Table">
      <table>
        <thead>
          <tr>
            {columns.map((name) => (
              <th key={name} scope="col">
                {humanName(name)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {list.slice(0, most).map((one, n) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: data have no other name
            <tr key={n}>
              {columns.map((name) => (
                <td key={name}>{cellText((one as Record<string, unknown>)[name])}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {list.length > most && <p className="muted">and {list.length - most} more</p>}
    </section>
  );
}

const isPlain = (value: unknown): boolean => typeof value !== "object" || value === null;

function cellText(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return String(value).slice(0, MOST_LETTERS);
}
