/** The calls of whoever uses this page. */
import { get, request } from "./http";
import type { CallDetails, CallList, CallSummary, Given, LinkedQuestion, Shown } from "./types";

/** Which calls are wanted: whose, how they stand, and of which method. */
export interface CallFilter {
  which: "" | "mine" | "asked" | "all";
  state: "active" | "waiting" | "running" | "finished" | "any";
  method: string;
}

const ENDED = "completed,failed,aborted,expired,poisoned";
const ALL = `running,waiting,diverged,${ENDED}`;
const STATES: Record<CallFilter["state"], string> = {
  active: "",
  waiting: "waiting,diverged",
  running: "running",
  finished: ENDED,
  any: ALL,
};

/** A page of calls, the newest first; `after` is the `next` of the one before. */
export const listCalls = (filter: CallFilter, after: string | null = null): Promise<CallList> => {
  const given = {
    which: filter.which,
    status: STATES[filter.state],
    name: filter.method,
    after: after ?? "",
  };
  const wanted = Object.entries(given).filter(([, value]) => value !== "");
  return get<CallList>(`calls?${new URLSearchParams(wanted)}`);
};

/** The calls that wait for somebody; nobody is asked for a key. */
export const waitingCalls = async (): Promise<CallSummary[]> =>
  (await get<CallList>("calls?status=waiting", { quiet: true })).calls;

/** Answer a question of a call that waits in the journal. */
export const answerCall = async (id: string, key: string, answer: unknown): Promise<void> => {
  await request(`calls/${encodeURIComponent(id)}/answers`, {
    method: "POST",
    body: { answers: { [key]: answer } },
  });
};

/** The calls of one method, also those that have ended; the newest first. */
export const callsOf = async (method: string): Promise<CallSummary[]> =>
  (await get<{ calls: CallSummary[] }>(`calls?status=${ALL}&name=${encodeURIComponent(method)}`)).calls;

export const showCall = (id: string): Promise<CallDetails> =>
  get<CallDetails>(`calls/${encodeURIComponent(id)}`);

/** A new call that has done the first so many entries of another, and goes on from there. */
export const forkCall = (id: string, at: number): Promise<CallDetails> =>
  get<CallDetails>(`calls/${encodeURIComponent(id)}/fork`, { method: "POST", body: { at } });

/** The question that a link leads to; the last part of it is enough. */
export const linkedQuestion = (link: string): Promise<LinkedQuestion> => get<LinkedQuestion>(linked(link));

/** Answer it; gives the component that asks for more, if one does. */
export const answerLinked = async (link: string, body: Given): Promise<Shown | null> => {
  const { component } = await get<{ component?: Shown }>(linked(link), { method: "POST", body });
  return component ?? null;
};

const linked = (link: string): string => `q/${encodeURIComponent(link.slice(link.lastIndexOf("/") + 1))}`;

export const abortCall = async (id: string, reason: string): Promise<void> => {
  await request(`calls/${encodeURIComponent(id)}/abort`, { method: "POST", body: { reason } });
};
