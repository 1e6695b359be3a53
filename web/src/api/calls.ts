/** The calls of whoever uses this page. */
import { get, request } from "./http";
import type { CallDetails, CallSummary, LinkedQuestion } from "./types";

export const listCalls = async (): Promise<CallSummary[]> =>
  (await get<{ calls: CallSummary[] }>("calls")).calls;

const ALL = "running,waiting,diverged,completed,failed,aborted,expired,poisoned";

/** The calls of one method, also those that have ended; the newest first. */
export const callsOf = async (method: string): Promise<CallSummary[]> =>
  (await get<{ calls: CallSummary[] }>(`calls?status=${ALL}&name=${encodeURIComponent(method)}`)).calls;

export const showCall = (id: string): Promise<CallDetails> =>
  get<CallDetails>(`calls/${encodeURIComponent(id)}`);

/** A new call that has done the first so many entries of another, and goes on from there. */
export const forkCall = (id: string, at: number): Promise<CallDetails> =>
  get<CallDetails>(`calls/${encodeURIComponent(id)}/fork`, { method: "POST", body: { at } });

/** The question that a link leads to. */
export const linkedQuestion = (token: string): Promise<LinkedQuestion> =>
  get<LinkedQuestion>(`q/${encodeURIComponent(token)}`);

export const answerLinked = async (token: string, answer: unknown): Promise<void> => {
  await request(`q/${encodeURIComponent(token)}`, { method: "POST", body: { answer } });
};

export const abortCall = async (id: string, reason: string): Promise<void> => {
  await request(`calls/${encodeURIComponent(id)}/abort`, { method: "POST", body: { reason } });
};
