/** Machines and the trails of their runs, as plain values. */
import type { CallEntry } from "../api/types";
import { isObject } from "../forms/schema";

export const START = "start";
export const END = "end";

export interface State {
  id: string;
  action: string;
  description?: string;
}

export interface Transition {
  id: [from: string, to: string];
  label: string;
  description?: string;
  omit?: boolean;
}

export interface Machine {
  id: string;
  description: string;
  states: State[];
  transitions: Transition[];
}

export interface TrailEntry {
  from: string;
  /** Where the event led; nothing if it was none that may follow there. */
  to: string | null;
  event: unknown;
  /** Why the event was refused. */
  error?: string;
}

/** A definition as the server has it: what is not said is left out. */
export function readMachine(given: Partial<Machine> & { id: string }): Machine {
  const transitions = (given.transitions ?? []).map((way) => ({ ...way, label: way.label ?? "" }));
  return { ...given, description: given.description ?? "", states: given.states ?? [], transitions };
}

/** The state of a run after so many entries of its trail. */
export function stateAfter(entry: TrailEntry | undefined): string {
  if (entry === undefined) return START;
  return entry.error === undefined && entry.to !== null ? entry.to : entry.from;
}

/** Why a run has given up, if that is how it has ended. */
export function bailOut(entry: TrailEntry | undefined): { reason: string; message: string } | null {
  if (entry?.to !== END || !isObject(entry.event) || entry.event.bail_out !== true) return null;
  const { reason, message } = entry.event;
  return { reason: String(reason ?? ""), message: typeof message === "string" ? message : "" };
}

/** A transition as one key, whatever its states are called. */
export const wayKey = (from: string, to: string): string => JSON.stringify([from, to]);

/** What has been taken up to a point: states, transitions, and the last of those. */
export interface Taken {
  at: string;
  states: ReadonlySet<string>;
  ways: ReadonlySet<string>;
  last: string;
}

export function takenUpTo(trail: readonly TrailEntry[], point: number): Taken {
  const states = new Set<string>([START]);
  const ways = new Set<string>();
  let last = "";
  for (const entry of trail.slice(0, point + 1)) {
    if (entry.error !== undefined || entry.to === null) continue;
    states.add(entry.to);
    last = wayKey(entry.from, entry.to);
    ways.add(last);
  }
  return { at: stateAfter(trail[point]), states, ways, last };
}

/** The entries of a trail among those of a call's journal: all but the first, which is what the run was given. */
export const inJournal = (entries: readonly CallEntry[]): { entry: TrailEntry; at: number }[] =>
  entries.flatMap(({ place, value, state }, n) =>
    !place.includes("/") && state === "done" && isEntry(value) ? [{ entry: value, at: n + 1 }] : [],
  );

/** How many entries of the journal a fork keeps that goes on from a point of the trail; nothing if it cannot. */
export function forkAt(entries: readonly CallEntry[], point: number): number | null {
  return point === 0 ? 0 : (inJournal(entries)[point - 1]?.at ?? null);
}

const isEntry = (value: unknown): value is TrailEntry =>
  isObject(value) && typeof value.from === "string" && "to" in value && "event" in value;
