/** One run of a machine: how it stands, what it asks, its trail, and the ways to stop and to fork it. */
import { type ReactNode, useState } from "react";
import { abortCall, forkCall, showCall } from "../api/calls";
import { readable } from "../api/http";
import type { Reply } from "../api/types";
import { QuestionCard } from "../questions/QuestionCard";
import { fromRequest } from "../questions/question";
import { go } from "../router";
import { announce } from "../ui/Announcer";
import { Icon } from "../ui/Icon";
import { bailOut, forkAt, type Machine } from "./machine";
import type { Question, Run, RunState } from "./run";
import { TrailView } from "./TrailView";

export function RunPanel(props: {
  run: Run;
  state: RunState;
  machine: Machine;
  point: number;
  onPoint: (point: number) => void;
  onAgain: () => void;
}): ReactNode {
  const { run, state, machine, point } = props;
  const [error, setError] = useState<string | null>(null);
  const [isForking, setForking] = useState(false);

  const stop = async (): Promise<void> => {
    try {
      await abortCall(run.id, "Stopped on the page");
    } catch (failure) {
      setError(readable(failure));
    }
  };
  const fork = async (): Promise<void> => {
    setForking(true);
    setError(null);
    try {
      const { entries = [] } = point === 0 ? {} : await showCall(run.id);
      const at = forkAt(entries, point);
      if (at === null) throw new Error("This point is not written down yet. Try again in a moment.");
      const forked = await forkCall(run.id, at);
      announce("Forked");
      go({ page: "machines", machine: machine.id, run: forked.id });
    } catch (failure) {
      setError(readable(failure));
    }
    setForking(false);
  };

  const isActive = state.status === "running" || state.status === "loading";
  return (
    <article className="run-panel" aria-label="Run">
      <header>
        <p className="run-state" role="status" data-troubled={isTroubled(state) || undefined}>
          {said(state)}
        </p>
        {isActive && (
          <button type="button" className="button button-small" onClick={() => void stop()}>
            <Icon name="stop" /> Stop
          </button>
        )}
      </header>
      {state.isLost && (
        <p className="banner" role="status">
          <span>Connection lost. Reconnecting…</span>
        </p>
      )}
      {state.error !== null && (
        <div className="banner banner-error" role="alert">
          <Icon name="alert" />
          <span>{state.error}</span>
          {state.status === "elsewhere" && (
            <button type="button" className="button button-small" onClick={props.onAgain}>
              Follow it here
            </button>
          )}
        </div>
      )}
      {error !== null && (
        <div className="banner banner-error" role="alert">
          <Icon name="alert" />
          <span>{error}</span>
        </div>
      )}
      {state.isForeign && isActive && (
        <p className="banner">
          <span>Another program has started this run, and answers what it asks.</span>
        </p>
      )}
      {state.questions.map((question) => (
        <Asked key={question.request_id} run={run} question={question} />
      ))}
      {isActive && state.questions.length === 0 && state.progress !== "" && (
        <p className="run-progress muted">
          <Icon name="clock" /> {state.progress}
        </p>
      )}
      {state.trail.length > 0 && (
        <TrailView
          machine={machine}
          trail={state.trail}
          point={point}
          onPoint={props.onPoint}
          onFork={() => void fork()}
          isForking={isForking}
        />
      )}
      <p className="run-id muted">{run.id}</p>
    </article>
  );
}

function Asked({ run, question }: { run: Run; question: Question }): ReactNode {
  const [view] = useState(() => fromRequest(question));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const reply = async (given: Reply): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      await run.reply(question, given);
    } catch (failure) {
      setError(readable(failure));
      setBusy(false);
    }
  };
  return <QuestionCard question={view} onReply={(given) => void reply(given)} busy={busy} error={error} />;
}

export const isTroubled = (state: RunState): boolean =>
  state.status === "failed" || (state.status === "ended" && bailOut(state.trail.at(-1)) !== null);

/** How a run stands, in a word or two. */
function said(state: RunState): string {
  switch (state.status) {
    case "loading":
      return "Loading…";
    case "running":
      return state.questions.length > 0 ? "Asks you" : "Running";
    case "ended":
      return bailOut(state.trail.at(-1)) === null ? "Ended" : "Gave up";
    case "failed":
      return "Failed";
    case "elsewhere":
      return "Followed elsewhere";
  }
}
