/** The runs of methods that were started in Tools, as plain values that change with each item. */
import type { Received } from "../api/socket";
import type { Item, Reply } from "../api/types";

type RequestItem = Extract<Item, { type: "request" }>;

/** An open question of a run, and when it is too late to answer, in milliseconds of `Date.now()`. */
export interface Asked {
  item: RequestItem;
  deadline: number | null;
}

export interface Run {
  id: number;
  method: string;
  /** The id of its call, once the server has it. */
  call: string | null;
  /** Whether it goes on without this page, and can be followed again. */
  isDurable: boolean;
  status: "running" | "done" | "failed" | "cancelled" | "lost" | "elsewhere";
  /** Whether the connection is lost for now. */
  isLost: boolean;
  /** In milliseconds of `Date.now()`, as is `ended`. */
  started: number;
  ended: number | null;
  items: Received[];
  /** How many elements of its result have come; the next one has a number after that. */
  elements: number;
  progress: Extract<Item, { type: "progress" }> | null;
  questions: Asked[];
  /** What was asked and answered, for the record. */
  replies: ReadonlyMap<string, Reply["action"]>;
}

const MOST_ITEMS = 2000;

export const newRun = (id: number, method: string, given: Partial<Run> = {}): Run => ({
  id,
  method,
  call: null,
  isDurable: true,
  status: "running",
  isLost: false,
  started: Date.now(),
  ended: null,
  items: [],
  elements: 0,
  progress: null,
  questions: [],
  replies: new Map(),
  ...given,
});

/** The run after one more item; nothing instead of an item means that the connection is lost. */
export function taken(run: Run, item: Received | null, now = Date.now()): Run {
  if (run.ended !== null) return run;
  if (item === null) {
    // What a durable run asks is asked again when it is followed again.
    return run.isDurable ? { ...run, isLost: true, questions: [] } : over(run, "lost", now);
  }
  const next = { ...run, items: [...run.items, item].slice(-MOST_ITEMS) };
  switch (item.type) {
    case "data":
      return { ...next, elements: run.elements + 1 };
    case "progress":
      return { ...next, progress: item };
    case "request":
      return { ...askedOnce(next, item), questions: [...without(run, item.request_id), asked(item, now)] };
    case "request_cancelled":
      return { ...next, questions: without(run, item.request_id) };
    case "error":
      return { ...next, status: item.code === "attached_elsewhere" ? "elsewhere" : "failed" };
    case "done":
      return over(next, run.status === "running" ? "done" : run.status, now);
    default:
      return next;
  }
}

/** A question that is asked again, as the connection was lost, stands once among the items. */
function askedOnce(run: Run, item: RequestItem): Run {
  const isSame = (one: Received): boolean => one.type === "request" && one.request_id === item.request_id;
  const items = run.items.filter((one) => one === item || !isSame(one));
  return items.length === run.items.length ? run : { ...run, items };
}

const without = (run: Run, requestId: string): Asked[] =>
  run.questions.filter((one) => one.item.request_id !== requestId);

/** It may have been asked a while ago, and only been told again now. */
function asked(item: RequestItem, now: number): Asked {
  if (item.timeout_ms === undefined) return { item, deadline: null };
  const since = Math.min(now, item.metadata.timestamp * 1000 || now);
  return { item, deadline: since + item.timeout_ms };
}

export function replied(run: Run, requestId: string, action: Reply["action"]): Run {
  return {
    ...run,
    questions: without(run, requestId),
    replies: new Map(run.replies).set(requestId, action),
  };
}

export const over = (run: Run, status: Run["status"], now = Date.now()): Run => ({
  ...run,
  status,
  isLost: false,
  ended: now,
  progress: status === "done" ? run.progress : null,
  questions: [],
});
