/** The questions that wait for whoever uses this page, and which of them are new. */
import type { AskedQuestion, CallSummary } from "../api/types";

export interface WaitingQuestion {
  id: string;
  method: string;
  message: string;
}

/** What is asked of this person, and can be answered here. */
export function waitingIn(calls: readonly CallSummary[]): WaitingQuestion[] {
  return calls.flatMap(({ id, method, questions }) =>
    questions
      .filter((one): one is AskedQuestion => "key" in one && one.link !== undefined)
      .map(({ place, message }) => ({ id: `${id} ${place}`, method, message })),
  );
}

/** Those that were not there before; at first, none. */
export function newOnes(
  before: ReadonlySet<string> | null,
  now: readonly WaitingQuestion[],
): WaitingQuestion[] {
  return before === null ? [] : now.filter((one) => !before.has(one.id));
}

const PREFIX = /^\(\d+\) /;

/** The title of the tab, with how many questions wait. */
export const titled = (title: string, count: number): string =>
  (count > 0 ? `(${count}) ` : "") + title.replace(PREFIX, "");

const LONGEST = 200;

/** One line of what a stranger may have written. */
export function shortened(text: string): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > LONGEST ? `${line.slice(0, LONGEST)}…` : line;
}
