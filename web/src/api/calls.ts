/** The calls of whoever uses this page. */
import { get, request } from "./http";
import type { CallSummary } from "./types";

export const listCalls = async (signal?: AbortSignal): Promise<CallSummary[]> =>
  (await get<{ calls: CallSummary[] }>("calls", signal ? { signal } : {})).calls;

export const abortCall = async (id: string, reason: string): Promise<void> => {
  await request(`calls/${encodeURIComponent(id)}/abort`, { method: "POST", body: { reason } });
};
