/** One question, at its own address: for whoever has the link, perhaps on a phone, and nothing else. */
import { type ReactNode, useCallback, useEffect, useState } from "react";
import { answerLinked, linkedQuestion } from "../api/calls";
import { Refused, readable } from "../api/http";
import { keyring } from "../api/key";
import type { Given, LinkedQuestion, Shown } from "../api/types";
import { ageText } from "../ui/age";
import { Icon } from "../ui/Icon";
import { OpenQuestion } from "./OpenQuestion";
import "../styles/calls.css";

type State =
  | { kind: "loading" }
  | { kind: "asked"; asked: LinkedQuestion }
  | { kind: "answered" }
  | { kind: "refused"; why: string; gone: boolean };

export default function QuestionPage({ token }: { token: string }): ReactNode {
  const [state, setState] = useState<State>({ kind: "loading" });

  const refuse = useCallback((failure: unknown): void => {
    const gone = failure instanceof Refused && failure.code === "unknown_link";
    setState({ kind: "refused", why: readable(failure), gone });
  }, []);

  const look = useCallback(async (): Promise<void> => {
    setState({ kind: "loading" });
    try {
      setState({ kind: "asked", asked: await linkedQuestion(token) });
    } catch (failure) {
      refuse(failure);
    }
  }, [token, refuse]);

  useEffect(() => {
    document.title = "Question · midcall";
    void look();
  }, [look]);

  const send = async (given: Given): Promise<Shown | null> => {
    try {
      const more = await answerLinked(token, given);
      if (more === null) setState({ kind: "answered" });
      return more;
    } catch (failure) {
      if (!(failure instanceof Refused && failure.code === "unknown_link")) throw failure;
      refuse(failure); // somebody else was faster, or the time was up
      return null;
    }
  };

  return (
    <main className="calls" id="main">
      {state.kind === "loading" && <p className="muted">Loading…</p>}
      {state.kind === "asked" && (
        <>
          <header className="page-head">
            <h1>A question for you</h1>
            <p className="muted">
              <span className="call-method">{state.asked.method}</span>
              {state.asked.caller !== null && <>, called by {state.asked.caller},</>} asked{" "}
              {ageText(state.asked.age)} ago
            </p>
          </header>
          <OpenQuestion asked={state.asked} id={state.asked.key} send={send} />
        </>
      )}
      {state.kind === "answered" && (
        <div className="empty" role="status">
          <Icon name="check" />
          <h1>Thank you</h1>
          <p>Your answer was taken. You can close this page.</p>
        </div>
      )}
      {state.kind === "refused" && (
        <div className="empty" role="alert">
          <Icon name="alert" />
          <h1>{state.gone ? "Nothing to answer here" : "This did not work"}</h1>
          <p>{state.why}</p>
          {keyring.value !== null && (
            <button
              type="button"
              className="button"
              onClick={() => {
                keyring.forget();
                void look();
              }}
            >
              Use another key
            </button>
          )}
          {!state.gone && (
            <button type="button" className="button" onClick={() => void look()}>
              Try again
            </button>
          )}
        </div>
      )}
    </main>
  );
}
