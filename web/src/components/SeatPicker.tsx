/**
 * A cabin to choose a seat in. Responds with `{"row": n, "seat": "A"}`.
 *
 * One stop for the Tab key; inside, the arrow keys move as the seats lie, also over taken ones, so that
 * nobody is left at a place from which nothing can be reached.
 */
import { type KeyboardEvent, type ReactNode, useId, useRef, useState } from "react";
import { Icon } from "../ui/Icon";
import type { ComponentProps } from "./registry";

interface SeatMap {
  rows: number;
  columns: string[];
  taken: string[];
}

interface Props {
  seatMap?: SeatMap;
  message?: string;
}

interface Seat {
  row: number;
  seat: string;
}

const EMPTY: SeatMap = { rows: 0, columns: [], taken: [] };

export function SeatPicker({ props, respond, disabled }: ComponentProps<Props, Seat>): ReactNode {
  const { rows, columns, taken } = props.seatMap ?? EMPTY;
  const takenSeats = new Set(taken);
  const isTaken = ({ row, seat }: Seat): boolean => takenSeats.has(`${row}${seat}`);
  const [chosen, setChosen] = useState<Seat | null>(null);
  const [focused, setFocused] = useState<Seat>(() => firstFree(props.seatMap ?? EMPTY));
  const grid = useRef<HTMLTableElement>(null);
  const id = useId();
  const aisle = Math.ceil(columns.length / 2);

  const focus = (seat: Seat): void => {
    setFocused(seat);
    grid.current?.querySelector<HTMLElement>(`[data-seat="${seat.row}${seat.seat}"]`)?.focus();
  };
  const move = (event: KeyboardEvent): void => {
    const column = columns.indexOf(focused.seat);
    const to = (row: number, n: number): void => {
      event.preventDefault();
      const seat = columns[Math.min(columns.length - 1, Math.max(0, n))];
      if (seat !== undefined) focus({ row: Math.min(rows, Math.max(1, row)), seat });
    };
    if (event.key === "ArrowLeft") to(focused.row, column - 1);
    else if (event.key === "ArrowRight") to(focused.row, column + 1);
    else if (event.key === "ArrowUp") to(focused.row - 1, column);
    else if (event.key === "ArrowDown") to(focused.row + 1, column);
    else if (event.key === "Home") to(event.ctrlKey ? 1 : focused.row, 0);
    else if (event.key === "End") to(event.ctrlKey ? rows : focused.row, columns.length - 1);
  };

  return (
    <section className="seats" aria-labelledby={id}>
      <h3 className="component-title" id={id}>
        <Icon name="plane" />
        {props.message || "Select your seat"}
      </h3>
      <div className="cabin">
        {/* biome-ignore lint/a11y/noNoninteractiveElementToInteractiveRole: a grid that arrow keys move in */}
        <table ref={grid} role="grid" aria-labelledby={id} onKeyDown={move}>
          <thead>
            <tr>
              <td />
              {columns.map((column, n) => (
                <th key={column} scope="col" className={n === aisle ? "after-aisle" : undefined}>
                  {column}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {Array.from({ length: rows }, (_, n) => n + 1).map((row) => (
              <tr key={row}>
                <th scope="row">{row}</th>
                {columns.map((column, n) => {
                  const seat = { row, seat: column };
                  const state = isTaken(seat) ? "taken" : isSame(seat, chosen) ? "selected" : "available";
                  return (
                    // biome-ignore lint/a11y/useFocusableInteractive: the button inside has the focus
                    <td
                      key={column}
                      // biome-ignore lint/a11y/noNoninteractiveElementToInteractiveRole: a cell of the grid
                      role="gridcell"
                      aria-selected={state === "selected"}
                      className={n === aisle ? "after-aisle" : undefined}
                    >
                      <button
                        type="button"
                        className="seat"
                        data-seat={`${row}${column}`}
                        data-state={state}
                        tabIndex={isSame(seat, focused) ? 0 : -1}
                        aria-label={`Seat ${row}${column}, ${state}`}
                        aria-disabled={state === "taken" || undefined}
                        disabled={disabled}
                        onFocus={() => setFocused(seat)}
                        onClick={() => {
                          if (state !== "taken") setChosen(seat);
                        }}
                      >
                        {state === "selected" ? <Icon name="check" /> : null}
                      </button>
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <ul className="seat-legend" aria-label="What the colours mean">
        {(["available", "taken", "selected"] as const).map((state) => (
          <li key={state}>
            <span className="seat seat-sample" data-state={state} />
            {state}
          </li>
        ))}
      </ul>
      <button
        type="button"
        className="button button-primary"
        disabled={disabled || chosen === null}
        onClick={() => chosen && respond(chosen)}
      >
        {chosen === null ? "Choose a seat" : `Take seat ${chosen.row}${chosen.seat}`}
      </button>
    </section>
  );
}

const isSame = (a: Seat, b: Seat | null): boolean => a.row === b?.row && a.seat === b.seat;

/** Where the Tab key arrives. */
function firstFree({ rows, columns, taken }: SeatMap): Seat {
  for (let row = 1; row <= rows; row += 1) {
    for (const seat of columns) if (!taken.includes(`${row}${seat}`)) return { row, seat };
  }
  return { row: 1, seat: columns[0] ?? "A" };
}
