/** The runs of methods that were started in Tools, as plain values that change with each item. */
import type { Received } from "../api/socket";
import type { Item, LogLine, Reply } from "../api/types";

type RequestItem = Extract<Item, { type: "request" }>;

export interface Run {
  id: number;
  method: string;
  params: unknown;
  subscription: string | null;
  status: "running" | "done" | "failed" | "cancelled" | "lost";
  started: number;
  ended: number | null;
  items: Received[];
  progress: Extract<Item, { type: "progress" }> | null;
  questions: RequestItem[];
  /** What was asked and answered, for the record. */
  replies: ReadonlyMap<string, Reply["action"]>;
}

const MOST_ITEMS = 2000;

export const newRun = (id: number, method: string, params: unknown): Run => ({
  id,
  method,
  params,
  subscription: null,
  status: "running",
  started: performance.now(),
  ended: null,
  items: [],
  progress: null,
  questions: [],
  replies: new Map(),
});

/** The run after one more item; nothing instead of an item means that the line is lost. */
export function taken(run: Run, item: Received | null): Run {
  if (run.ended !== null) return run;
  if (item === null) return over(run, "lost");
  const next = { ...run, items: [...run.items, item].slice(-MOST_ITEMS) };
  switch (item.type) {
    case "progress":
      return { ...next, progress: item };
    case "request":
      return { ...next, questions: [...run.questions, item] };
    case "request_cancelled":
      return { ...next, questions: run.questions.filter((one) => one.request_id !== item.request_id) };
    case "error":
      return { ...next, status: "failed" };
    case "done":
      return over(next, run.status === "running" ? "done" : run.status);
    default:
      return next;
  }
}

export function replied(run: Run, requestId: string, action: Reply["action"]): Run {
  return {
    ...run,
    questions: run.questions.filter((one) => one.request_id !== requestId),
    replies: new Map(run.replies).set(requestId, action),
  };
}

export const over = (run: Run, status: Run["status"]): Run => ({
  ...run,
  status,
  ended: performance.now(),
  progress: status === "done" ? run.progress : null,
  questions: [],
});

export type { LogLine };
