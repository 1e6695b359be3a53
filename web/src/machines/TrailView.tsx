/** The trail of a run: a slider through it, each entry with its event, and a fork from any of them. */
import { type KeyboardEvent, memo, type ReactNode, useEffect, useId, useMemo, useRef } from "react";
import { isObject } from "../forms/schema";
import { Icon } from "../ui/Icon";
import { Json } from "../ui/Json";
import { stateName } from "./layout";
import { bailOut, END, type Machine, stateAfter, type TrailEntry, wayKey } from "./machine";

/** How many entries are listed at once; the slider leads to the others. */
const LISTED = 200;

export interface TrailViewProps {
  machine: Machine;
  trail: readonly TrailEntry[];
  /** Which entry is looked at. */
  point: number;
  onPoint: (point: number) => void;
  onFork: () => void;
  isForking: boolean;
}

export function TrailView({ machine, trail, point, onPoint, onFork, isForking }: TrailViewProps): ReactNode {
  const id = useId();
  const last = trail.length - 1;
  const entry = trail[point];
  const first = Math.max(0, Math.min(point - LISTED / 2, trail.length - LISTED));
  const listed = trail.slice(first, first + LISTED);
  return (
    <section className="trail" aria-labelledby={id}>
      <header>
        <h3 id={id}>Trail</h3>
        <span className="muted trail-count">
          {point + 1} of {trail.length}
        </span>
        <button
          type="button"
          className="button button-small"
          disabled={isForking || entry === undefined || stateAfter(entry) === END}
          onClick={onFork}
          title="Start a new run that goes on from this point"
        >
          <Icon name="fork" /> Fork from here
        </button>
      </header>
      <input
        type="range"
        className="trail-slider"
        aria-label="Point of the trail"
        aria-valuetext={`${point + 1} of ${trail.length}: at ${stateName(stateAfter(entry))}`}
        min={0}
        max={Math.max(last, 0)}
        value={point}
        disabled={last < 1}
        onChange={(event) => onPoint(Number(event.target.value))}
      />
      {first > 0 && (
        <button type="button" className="button button-small button-quiet" onClick={() => onPoint(first - 1)}>
          {first} earlier
        </button>
      )}
      <Entries machine={machine} entries={listed} first={first} point={point} onPoint={onPoint} />
      {first + LISTED < trail.length && (
        <button
          type="button"
          className="button button-small button-quiet"
          onClick={() => onPoint(first + LISTED)}
        >
          {trail.length - first - LISTED} later
        </button>
      )}
    </section>
  );
}

function Entries(props: {
  machine: Machine;
  entries: readonly TrailEntry[];
  first: number;
  point: number;
  onPoint: (point: number) => void;
}): ReactNode {
  const { machine, entries, first, point, onPoint } = props;
  const labels = useMemo(
    () => new Map(machine.transitions.map(({ id, label }) => [wayKey(...id), label])),
    [machine],
  );
  const list = useRef<HTMLOListElement>(null);
  const byKey = useRef(false);

  // biome-ignore lint/correctness/useExhaustiveDependencies: whenever another entry is looked at, or there are more
  useEffect(() => {
    const chosen = list.current?.querySelector<HTMLElement>('[aria-current="step"]');
    if (byKey.current) chosen?.focus({ preventScroll: true });
    byKey.current = false;
    if (list.current !== null && chosen) bringIntoView(list.current, chosen.parentElement ?? chosen);
  }, [point, entries.length]);

  const onKey = (event: KeyboardEvent): void => {
    const last = first + entries.length - 1;
    const moves: Record<string, number> = {
      ArrowUp: point - 1,
      ArrowDown: point + 1,
      Home: first,
      End: last,
    };
    const next = moves[event.key];
    if (next === undefined) return;
    event.preventDefault();
    byKey.current = true;
    onPoint(Math.max(0, Math.min(next, last)));
  };

  return (
    <ol ref={list} className="trail-list" start={first + 1} onKeyDown={onKey}>
      {entries.map((entry, n) => (
        <Entry
          // biome-ignore lint/suspicious/noArrayIndexKey: an entry is what it is by its place
          key={first + n}
          entry={entry}
          number={first + n}
          label={labels.get(wayKey(entry.from, String(entry.to))) ?? ""}
          isChosen={first + n === point}
          onPoint={onPoint}
        />
      ))}
    </ol>
  );
}

const Entry = memo(function Entry(props: {
  entry: TrailEntry;
  number: number;
  label: string;
  isChosen: boolean;
  onPoint: (point: number) => void;
}): ReactNode {
  const { entry, number, label, isChosen, onPoint } = props;
  const gaveUp = bailOut(entry);
  return (
    <li data-refused={entry.error !== undefined || gaveUp !== null || undefined}>
      <button
        type="button"
        className="trail-entry"
        aria-current={isChosen ? "step" : undefined}
        tabIndex={isChosen ? 0 : -1}
        onClick={() => onPoint(number)}
      >
        <span className="trail-number">{number + 1}</span>
        <span className="trail-way">
          <bdi className="state-word">{stateName(entry.from)}</bdi>
          <span className="trail-arrow" aria-hidden="true">
            →
          </span>
          <span className="sr-only"> to </span>
          <bdi className="state-word">{entry.to === null ? "?" : stateName(String(entry.to))}</bdi>
          {label && <bdi className="badge">{label}</bdi>}
          {entry.error !== undefined && <span className="badge badge-danger">refused</span>}
          {gaveUp !== null && <span className="badge badge-danger">gave up</span>}
        </span>
        {!isChosen && <span className="trail-preview">{preview(entry)}</span>}
      </button>
      {isChosen && (
        <div className="trail-event">
          {entry.error !== undefined && (
            <p className="trail-error">
              <Icon name="alert" /> {entry.error}
            </p>
          )}
          {gaveUp !== null && (
            <p className="trail-error">
              <Icon name="alert" /> {gaveUp.reason}
              {gaveUp.message && `: ${gaveUp.message}`}
            </p>
          )}
          <Json value={entry.event} label="event" />
        </div>
      )}
    </li>
  );
});

/** A value in a few characters, however large it is. */
function brief(value: unknown): string {
  if (Array.isArray(value)) return value.length === 0 ? "[]" : `[${value.length}]`;
  if (isObject(value)) return "{…}";
  return typeof value === "string" ? value.slice(0, PREVIEW) : String(value);
}

/** Scroll the list, and nothing around it: an open question stays where it is. */
function bringIntoView(list: HTMLElement, entry: HTMLElement): void {
  const [inner, outer] = [entry.getBoundingClientRect(), list.getBoundingClientRect()];
  if (inner.top < outer.top) list.scrollTop += inner.top - outer.top;
  else if (inner.bottom > outer.bottom) {
    list.scrollTop += Math.min(inner.bottom - outer.bottom, inner.top - outer.top);
  }
}

const PREVIEW = 80;

/** The fields of an event on one line. */
function preview(entry: TrailEntry): string {
  if (entry.error !== undefined) return entry.error.slice(0, PREVIEW);
  if (!isObject(entry.event)) return "";
  const fields = Object.entries(entry.event).filter(([name]) => name !== "id");
  let text = "";
  for (const [name, value] of fields) {
    text += `${text && ", "}${name}: ${brief(value)}`;
    if (text.length > PREVIEW) break;
  }
  return text.slice(0, PREVIEW).replace(/\s+/g, " ");
}
