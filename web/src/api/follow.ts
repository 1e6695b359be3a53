/**
 * Follows one run of the chat to its end, whatever happens to the line: each event once, in order.
 *
 * A run goes on in the server also when nobody listens. Its lines are numbered, so that whoever lost the
 * line comes back with the number of the last one that it has.
 */
import { Refused } from "./http";
import { readLines } from "./ndjson";
import type { ChatEvent, Line } from "./types";

/** The server does not know this run (any more). */
export class RunGone extends Error {}

export interface Following {
  /** The response of the request that began the run; without one, the run is joined. */
  first?: Response;
  sessionId: string;
  lastLsn: number;
  /** Opens the run again behind a line. Raises `Refused` or another error. */
  reopen: (sessionId: string, lastLsn: number, signal: AbortSignal) => Promise<Response>;
  signal: AbortSignal;
  /** Told when the line is lost, and when it is back. */
  onLine?: (isUp: boolean) => void;
  wait?: (attempt: number, signal: AbortSignal) => Promise<void>;
}

const LAST = new Set<ChatEvent["type"]>(["complete", "error", "conversation_state"]);
const MOST_EMPTY = 3;

export async function* follow(run: Following): AsyncGenerator<ChatEvent> {
  let response = run.first;
  let lastLsn = run.lastLsn;
  let last: ChatEvent["type"] | null = null;
  let attempt = 0;
  let empty = 0;
  while (true) {
    // A line that is lost silently is noticed when the browser says that it is offline.
    const line = new AbortController();
    const cut = (): void => line.abort();
    run.signal.addEventListener("abort", cut, { once: true });
    globalThis.addEventListener?.("offline", cut);
    let got = 0;
    try {
      run.signal.throwIfAborted();
      response ??= await run.reopen(run.sessionId, lastLsn, line.signal);
      if (response.body === null) throw new Error("The response has no body.");
      run.onLine?.(true);
      for await (const { lsn, event } of readLines<Line>(response.body, line.signal)) {
        if (lsn <= lastLsn) continue;
        if (lsn > lastLsn + 1) throw new Error("A line is missing.");
        lastLsn = lsn;
        last = event.type;
        got += 1;
        attempt = 0;
        yield event;
      }
      empty = got ? 0 : empty + 1;
      if ((last !== null && LAST.has(last)) || empty >= MOST_EMPTY) return;
    } catch (error) {
      if (run.signal.aborted) throw error;
      if (error instanceof Refused) {
        if (error.status === 404) throw new RunGone(error.message);
        if (error.status < 500 && error.status !== 429) throw error;
      }
    } finally {
      run.signal.removeEventListener("abort", cut);
      globalThis.removeEventListener?.("offline", cut);
    }
    response = undefined;
    run.onLine?.(false);
    await (run.wait ?? backOff)(attempt, run.signal);
    attempt += 1;
  }
}

/** Longer after each failure, up to five seconds; shorter when the browser says that the line is back. */
export async function backOff(attempt: number, signal: AbortSignal): Promise<void> {
  const most = Math.min(5000, 250 * 2 ** attempt);
  await new Promise<void>((resolve, reject) => {
    const done = (): void => {
      clearTimeout(timer);
      globalThis.removeEventListener("online", done);
      signal.removeEventListener("abort", fail);
      resolve();
    };
    const fail = (): void => {
      done();
      reject(signal.reason);
    };
    const timer = setTimeout(done, most * (0.5 + Math.random() / 2));
    globalThis.addEventListener("online", done);
    signal.addEventListener("abort", fail);
    if (signal.aborted) fail();
  });
}
