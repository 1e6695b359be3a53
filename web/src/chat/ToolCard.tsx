/** A tool that was called: folded to one line, with its questions, its progress and its pictures always in sight. */
import { lazy, memo, type ReactNode, Suspense, useState } from "react";
import type { ElicitResponse } from "../api/types";
import { isObject } from "../forms/schema";
import { ageText } from "../ui/age";
import { Dialog } from "../ui/Dialog";
import { Icon, type IconName } from "../ui/Icon";
import { Json } from "../ui/Json";
import { Progress } from "../ui/Progress";
import { Readable } from "../ui/Readable";
import { Answered } from "./Answered";
import { Parts } from "./Parts";
import type { Answers } from "./Questions";
import type { CallStatus, ToolCall } from "./transcript";

const STATUS: Record<CallStatus, { text: string; icon: IconName }> = {
  running: { text: "running", icon: "again" },
  waiting: { text: "asks you", icon: "question" },
  done: { text: "done", icon: "check" },
  failed: { text: "failed", icon: "alert" },
  refused: { text: "not done", icon: "cross" },
};

/** How it ended, by its code. */
const ENDED: Record<string, string> = {
  declined: "declined by you",
  cancelled: "cancelled by you",
  dropped: "dropped",
  timed_out: "not answered in time",
};

/** Forms are not needed before the page is painted. */
export const loadQuestions = () => import("./Questions");
const Questions = lazy(loadQuestions);

export const ToolCard = memo(function ToolCard(props: {
  call: ToolCall;
  conversation: string | null;
  sending: ReadonlyMap<string, ElicitResponse>;
  refusals: ReadonlyMap<string, string>;
  onReply: (...answers: Answers) => unknown;
  /** Make it again; without it that is not possible now. */
  onAgain: ((call: ToolCall) => unknown) | null;
}): ReactNode {
  const { call, onAgain } = props;
  const { text, icon } = STATUS[call.status];
  const isOver = call.result !== null || call.error !== null;
  return (
    <article className="tool" data-status={call.status} aria-label={`Tool ${dotted(call.name)}`}>
      <details className="tool-details">
        <summary>
          <Icon name={icon} className={call.status === "running" ? "tool-icon turning" : "tool-icon"} />
          <span className="tool-name">{dotted(call.name)}</span>
          <span className="tool-status">
            {ENDED[call.code] ?? text}
            {isOver && call.seconds ? `, ${took(call.seconds)}` : ""}
          </span>
          <Icon name="chevron" className="fold" />
        </summary>
        <div className="tool-inside">
          <h3>Arguments</h3>
          <Json value={call.arguments} label="arguments" />
          {call.result !== null && (
            <>
              <h3>Result</h3>
              <Result content={call.result.content} structured={call.result.structured} />
            </>
          )}
          {call.error !== null && (
            <>
              <h3>{call.status === "refused" ? "What the model was told" : "Error"}</h3>
              <p className={call.status === "refused" ? "tool-text" : "tool-error"}>{call.error}</p>
            </>
          )}
          {isOver && onAgain !== null && <Again call={call} onAgain={onAgain} />}
        </div>
      </details>
      {call.progress !== null && call.status === "running" && (
        <div className="tool-progress">
          <Progress {...call.progress} />
        </div>
      )}
      <Answered list={call.answered} />
      {call.questions.length > 0 && (
        <Suspense fallback={null}>
          <Questions {...props} />
        </Suspense>
      )}
      <Parts conversation={props.conversation} parts={call.parts} />
    </article>
  );
});

/** A call that has done something is made again only if the person says so twice. */
function Again({ call, onAgain }: { call: ToolCall; onAgain: (call: ToolCall) => unknown }): ReactNode {
  const [asking, setAsking] = useState(false);
  return (
    <div className="tool-again">
      <button
        type="button"
        className="button button-small"
        onClick={() => (call.status === "done" ? setAsking(true) : onAgain(call))}
      >
        <Icon name="again" /> Call again
      </button>
      {asking && (
        <Dialog title={`Call ${dotted(call.name)} again?`} onClose={() => setAsking(false)}>
          <p>
            It runs once more with the same arguments, and asks its questions again. What it did the first
            time stays done.
          </p>
          <div className="dialog-actions">
            <button type="button" className="button" onClick={() => setAsking(false)}>
              Leave it
            </button>
            <button
              type="button"
              className="button button-primary"
              onClick={() => {
                setAsking(false);
                onAgain(call);
              }}
            >
              Call again
            </button>
          </div>
        </Dialog>
      )}
    </div>
  );
}

/** Of a text that is shown as such; a longer one can be scrolled in a box. */
const MOST_LETTERS = 10_000;

const took = (seconds: number): string =>
  seconds < 1
    ? `${Math.max(1, Math.round(seconds * 1000))} ms`
    : seconds < 60
      ? `${seconds.toFixed(1)} s`
      : ageText(seconds);

/** Models take no dots in names, so that a method's name comes with underscores in their place. */
const dotted = (name: string): string => name.replaceAll("__", ".");

function Result({ content, structured }: { content: string; structured?: unknown }): ReactNode {
  const value = structured ?? parsed(content);
  if (isObject(value) || (Array.isArray(value) && value.length > 0)) {
    return (
      <>
        <Readable value={value} />
        <details className="tool-raw">
          <summary>As JSON</summary>
          <Json value={value} label="result" />
        </details>
      </>
    );
  }
  if (content.length > MOST_LETTERS) return <Json value={content} label="result" />;
  return <p className="tool-text">{content || "(no output)"}</p>;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}
