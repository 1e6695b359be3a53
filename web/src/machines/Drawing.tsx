/** A machine as a picture, with the way that a run has taken. Who cannot see it has the trail, and the list of states. */
import { type ReactNode, useEffect, useId, useMemo, useRef, useState } from "react";
import {
  type Layout,
  layOut,
  MOST_STATES,
  MOST_WAYS,
  type PlacedState,
  type PlacedWay,
  stateName,
} from "./layout";
import { END, type Machine, START, type State, type Taken, wayKey } from "./machine";

export interface DrawingProps {
  machine: Machine;
  /** What has been taken; nothing if no run is looked at. */
  taken: Taken | null;
  /** The run has given up, or what its state gave was refused. */
  isTroubled: boolean;
  /** A person is asked. */
  isAsking: boolean;
}

export function Drawing(props: DrawingProps): ReactNode {
  const { machine } = props;
  const [isWhole, setWhole] = useState(false);
  const isLarge = machine.states.length > MOST_STATES || machine.transitions.length > MOST_WAYS;
  return (
    <figure className="drawing">
      {isLarge ? (
        <p className="empty">
          This machine is too large to draw: {machine.states.length} states, {machine.transitions.length}{" "}
          transitions.
        </p>
      ) : (
        <Picture {...props} isWhole={isWhole} />
      )}
      <figcaption className="drawing-foot">
        <StateList machine={machine} />
        <button
          type="button"
          className="button button-small drawing-whole"
          aria-pressed={isWhole}
          onClick={() => setWhole(!isWhole)}
        >
          Fit
        </button>
      </figcaption>
    </figure>
  );
}

function Picture(props: DrawingProps & { isWhole: boolean }): ReactNode {
  const { machine, taken, isTroubled, isAsking, isWhole } = props;
  const layout = useMemo(() => layOut(machine), [machine]);
  const states = useMemo(() => new Map(machine.states.map((state) => [state.id, state])), [machine]);
  const ways = useMemo(() => new Map(machine.transitions.map((way) => [wayKey(...way.id), way])), [machine]);
  const frame = useRef<HTMLElement>(null);
  const id = useId();
  const at = taken?.at ?? null;

  // biome-ignore lint/correctness/useExhaustiveDependencies: whenever another state is lit, or all is shown larger
  useEffect(() => bringIntoView(frame.current), [at, isWhole, layout]);

  const said =
    at === null ? `Drawing of ${machine.id}` : `Drawing of ${machine.id}: the run is at ${stateName(at)}`;
  return (
    <section
      ref={frame}
      className="drawing-frame"
      data-whole={isWhole || undefined}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard
      tabIndex={0}
      aria-label={said}
    >
      <svg
        viewBox={`0 0 ${layout.width} ${layout.height}`}
        style={
          isWhole
            ? { maxWidth: layout.width, maxHeight: layout.height }
            : { maxWidth: layout.width, minWidth: layout.width * (layout.width > WIDE ? 1 : 0.72) }
        }
        data-crowded={layout.ways.length > CROWDED || undefined}
        aria-hidden="true"
      >
        <defs>
          {["plain", "taken", "last", "gave-up"].map((kind) => (
            <marker
              key={kind}
              id={`${id}-${kind}`}
              className={`arrow arrow-${kind}`}
              viewBox="0 0 10 10"
              refX="9"
              refY="5"
              markerWidth="9"
              markerHeight="9"
              markerUnits="userSpaceOnUse"
              orient="auto"
            >
              <path d="M0 0.8 L9.4 5 L0 9.2 z" />
            </marker>
          ))}
        </defs>
        {sorted(layout.ways, taken).map(({ way, kind }) => {
          const { omit, description } = ways.get(wayKey(way.from, way.to)) ?? {};
          return (
            <g key={wayKey(way.from, way.to)} className="way" data-kind={kind} data-omit={omit || undefined}>
              <path d={way.path} markerEnd={`url(#${id}-${kind})`} />
              {way.label !== null && (
                <g>
                  {description && <title>{description}</title>}
                  <rect
                    x={way.label.x - way.label.width / 2}
                    y={way.label.y - 10}
                    width={way.label.width}
                    height={20}
                    rx={10}
                  />
                  <text x={way.label.x} y={way.label.y}>
                    {way.label.text}
                  </text>
                </g>
              )}
            </g>
          );
        })}
        {taken !== null && taken.last !== "" && !ways.has(taken.last) && (
          <g className="way" data-kind="gave-up">
            <path d={around(layout, taken.last)} markerEnd={`url(#${id}-gave-up)`} />
          </g>
        )}
        {layout.states.map((placed) => (
          <StateBox
            key={placed.id}
            placed={placed}
            state={states.get(placed.id)}
            kind={placed.id === at ? "now" : taken?.states.has(placed.id) ? "been" : "plain"}
            isTroubled={isTroubled && placed.id === at}
            isAsking={isAsking && placed.id === at}
          />
        ))}
      </svg>
    </section>
  );
}

function StateBox(props: {
  placed: PlacedState;
  state: State | undefined;
  kind: "now" | "been" | "plain";
  isTroubled: boolean;
  isAsking: boolean;
}): ReactNode {
  const { id, x, y, width, height } = props.placed;
  const { state } = props;
  const isPill = id === START || id === END;
  const box = { x: x - width / 2, y, width, height, rx: isPill || state?.action === "ask" ? height / 2 : 9 };
  return (
    <g
      className="state"
      data-state={id}
      data-kind={props.kind}
      data-action={state?.action}
      data-troubled={props.isTroubled || undefined}
      data-asking={props.isAsking || undefined}
    >
      <title>{state?.description ? `${id}: ${state.description}` : id}</title>
      {props.kind === "now" && (
        <rect
          className="state-halo"
          {...box}
          x={box.x - 5}
          y={y - 5}
          width={width + 10}
          height={height + 10}
          rx={box.rx + 5}
        />
      )}
      <rect className="state-box" {...box} />
      {id === END && (
        <rect
          className="state-inner"
          {...box}
          x={box.x + 3}
          y={y + 3}
          width={width - 6}
          height={height - 6}
          rx={box.rx - 3}
        />
      )}
      {state === undefined ? (
        <text className="state-end" x={x} y={y + height / 2}>
          {id}
        </text>
      ) : (
        <>
          <text className="state-name" x={x} y={y + 18}>
            {stateName(id)}
          </text>
          <text className="state-action" x={x} y={y + 34}>
            {state.action}
          </text>
        </>
      )}
    </g>
  );
}

/** What was taken is drawn over what was not. */
function sorted(
  ways: readonly PlacedWay[],
  taken: Taken | null,
): { way: PlacedWay; kind: "plain" | "taken" | "last" }[] {
  const kinds = ["plain", "taken", "last"] as const;
  const all = ways.map((way) => {
    const key = wayKey(way.from, way.to);
    return {
      way,
      kind: kinds[taken === null ? 0 : taken.last === key ? 2 : taken.ways.has(key) ? 1 : 0] ?? "plain",
    };
  });
  return kinds.flatMap((kind) => all.filter((one) => one.kind === kind));
}

/** The way of a run that has given up where no transition leads to the end: around everything else. */
function around({ states, width }: Layout, key: string): string {
  const [from] = JSON.parse(key) as [string];
  const [begin, end] = [states.find(({ id }) => id === from), states.at(-1)];
  if (begin === undefined || end === undefined) return "";
  const [high, low] = [begin.y + begin.height / 2, end.y + end.height / 2];
  return `M${begin.x + begin.width / 2} ${high}C${width} ${high} ${width} ${low} ${end.x + end.width / 2} ${low}`;
}

/** Pixels beyond which a drawing is not made smaller: nobody could read it. */
const WIDE = 1000;
/** So many transitions, and what a run has taken must stand out more. */
const CROWDED = 100;

/** Scroll the frame, and nothing around it, so that the lit state is seen, or else `start`. */
function bringIntoView(frame: HTMLElement | null): void {
  const lit = frame?.querySelector('[data-kind="now"]') ?? frame?.querySelector(".state");
  if (!frame || !lit) return;
  const [inner, outer] = [lit.getBoundingClientRect(), frame.getBoundingClientRect()];
  const isSeen =
    inner.left > outer.left &&
    inner.right < outer.right &&
    inner.top > outer.top &&
    inner.bottom < outer.bottom;
  if (isSeen) return;
  frame.scrollBy(
    (inner.left + inner.right - outer.left - outer.right) / 2,
    (inner.top + inner.bottom - outer.top - outer.bottom) / 2,
  );
}

const MOST_LISTED = 500;

/** The same in words. */
function StateList({ machine }: { machine: Machine }): ReactNode {
  const from = useMemo(() => {
    const found = new Map<string, Machine["transitions"]>();
    for (const way of machine.transitions) found.set(way.id[0], [...(found.get(way.id[0]) ?? []), way]);
    return found;
  }, [machine]);
  const states: State[] = [{ id: START, action: "" }, ...machine.states];
  return (
    <details className="drawing-text">
      <summary>
        <span>
          {machine.states.length} states, {machine.transitions.length} transitions
        </span>
      </summary>
      <ul>
        {states.slice(0, MOST_LISTED).map(({ id, action, description }) => (
          <li key={id}>
            <bdi className="state-word">{id}</bdi> {action && <span className="badge">{action}</span>}
            {description && <span className="muted"> {description}</span>}
            <ul>
              {(from.get(id) ?? []).slice(0, MOST_LISTED).map((way) => (
                <li key={wayKey(...way.id)}>
                  to <bdi className="state-word">{way.id[1]}</bdi>
                  {way.label && (
                    <span className="muted">
                      {" "}
                      <bdi>{way.label}</bdi>
                    </span>
                  )}
                </li>
              ))}
            </ul>
          </li>
        ))}
      </ul>
    </details>
  );
}
