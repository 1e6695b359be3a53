/** Asks the server for something that a page shows, for as long as it cannot be reached. */
import { useEffect, useState } from "react";
import { backOff } from "./follow";
import { readable, Unreachable } from "./http";
import { LineLost } from "./socket";

/**
 * What the server answers, and why there is no (newer) answer. It is asked again when `onChanged` says that there
 * may be another one.
 */
export function useAnswer<T>(
  ask: () => Promise<T>,
  onChanged: (again: () => void) => () => void,
): { answer: T | null; error: string | null; again: () => void } {
  const [answer, setAnswer] = useState<T | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [times, setTimes] = useState(0);
  // biome-ignore lint/correctness/useExhaustiveDependencies: asked again when the person says so
  useEffect(() => {
    const abort = new AbortController();
    let isAsking = false;
    let isStale = false;
    const look = async (): Promise<void> => {
      isStale = isAsking;
      if (isAsking) return;
      isAsking = true;
      const found = await untilReached(ask, abort.signal, (failure) => setError(readable(failure)));
      isAsking = false;
      if (isStale && !abort.signal.aborted) void look(); // what has changed meanwhile may not be in the answer
      if (found === null) return;
      setAnswer(found);
      setError(null);
    };
    void look();
    const end = onChanged(() => void look());
    return () => {
      abort.abort();
      end();
    };
  }, [ask, onChanged, times]);
  return { answer, error, again: () => setTimes(times + 1) };
}

/** Nothing once the answer is of no interest any more, or the server refuses. */
async function untilReached<T>(
  ask: () => Promise<T>,
  signal: AbortSignal,
  failed: (error: unknown) => void,
): Promise<T | null> {
  for (let attempt = 0; ; attempt += 1) {
    try {
      const found = await ask();
      return signal.aborted ? null : found;
    } catch (error) {
      if (signal.aborted) return null;
      failed(error);
      if (!(error instanceof LineLost || error instanceof Unreachable)) return null;
      await backOff(attempt, signal).catch(() => {});
    }
  }
}
