/** The calls that run or wait, as they are now. */
import { type ReactNode, useCallback, useEffect, useState } from "react";
import { abortCall, listCalls } from "../api/calls";
import { Refused, readable } from "../api/http";
import type { CallSummary } from "../api/types";
import { announce } from "../ui/Announcer";
import { ageText } from "../ui/age";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";
import "../styles/calls.css";

const POLL = 1000;

export default function CallsPage(): ReactNode {
  const [calls, setCalls] = useState<readonly CallSummary[] | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [aborting, setAborting] = useState<CallSummary | null>(null);

  const read = useCallback(async (): Promise<void> => {
    try {
      setCalls(await listCalls());
      setError(null);
    } catch (failure) {
      setError(readable(failure));
    }
  }, []);

  useEffect(() => {
    document.title = "Calls · midcall";
    let timer: ReturnType<typeof setTimeout> | undefined;
    let current = true;
    const look = async (): Promise<void> => {
      clearTimeout(timer);
      if (!document.hidden) await read();
      if (current) timer = setTimeout(() => void look(), POLL);
    };
    const onVisible = (): void => void look();
    document.addEventListener("visibilitychange", onVisible);
    void look();
    return () => {
      current = false;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [read]);

  const abort = async (call: CallSummary): Promise<void> => {
    setAborting(null);
    try {
      await abortCall(call.id, "Aborted on the page");
      announce(`${call.method} is aborted`);
    } catch (failure) {
      // One that has ended meanwhile is what was wanted.
      if (!(failure instanceof Refused && [404, 409].includes(failure.status))) setError(readable(failure));
    }
    await read();
  };

  const waiting = calls?.filter((call) => call.waiting).length ?? 0;
  return (
    <main className="calls" id="main">
      <header className="page-head">
        <h1>Calls</h1>
        {calls !== null && calls.length > 0 && (
          <p className="muted">
            {calls.length - waiting} running, {waiting} waiting for an answer
          </p>
        )}
      </header>
      {error !== null && (
        <div className="banner banner-error" role="alert">
          <Icon name="alert" />
          <span>{error} Trying again…</span>
        </div>
      )}
      {calls === null && error === null && <p className="muted">Loading…</p>}
      {calls !== null && calls.length === 0 && (
        <div className="empty">
          <Icon name="calls" />
          <p>Nothing runs or waits at the moment.</p>
        </div>
      )}
      <ul className="call-list">
        {calls?.map((call) => (
          <li key={call.id} className="call" data-waiting={call.waiting || undefined}>
            <div className="call-head">
              <span className="call-method">{call.method}</span>
              <span className={call.waiting ? "badge badge-accent" : "badge"}>
                {STATUS[call.status] ?? call.status}
              </span>
              <span className="call-age">
                <Icon name="clock" />
                <span className="sr-only">Age: </span>
                {ageText(call.age)}
              </span>
              <button
                type="button"
                className="button button-small call-abort"
                aria-label={`Abort ${call.method}, ${call.id}`}
                onClick={() => setAborting(call)}
              >
                Abort
              </button>
            </div>
            {call.questions.length > 0 && (
              <ul className="call-questions" aria-label="Open questions">
                {call.questions.map((question) => (
                  <li key={"key" in question ? question.key : question.request_id}>
                    <Icon name="question" />
                    <span>{question.message}</span>
                    <span className="muted">asked {ageText(question.age)} ago</span>
                  </li>
                ))}
              </ul>
            )}
            <p className="call-id">{call.id}</p>
          </li>
        ))}
      </ul>
      {aborting !== null && (
        <Dialog title="Abort this call?" onClose={() => setAborting(null)}>
          <p>
            <strong>{aborting.method}</strong> ends at once, and its caller is told so. What it has done so
            far stays done.
          </p>
          <div className="dialog-actions">
            <button type="button" className="button" onClick={() => setAborting(null)}>
              Let it go on
            </button>
            <button type="button" className="button button-danger" onClick={() => void abort(aborting)}>
              Abort
            </button>
          </div>
        </Dialog>
      )}
    </main>
  );
}

const STATUS: Record<string, string> = {
  awaiting_answer: "waiting",
  awaiting_sample: "waiting for a model",
  diverged: "stands still",
};
