/** A tool that was called: folded to one line, with its questions and its progress always in sight. */
import { memo, type ReactNode } from "react";
import type { Elicit, ElicitResponse, Reply } from "../api/types";
import { isObject } from "../forms/schema";
import { QuestionCard } from "../questions/QuestionCard";
import { fromElicit } from "../questions/question";
import { Icon, type IconName } from "../ui/Icon";
import { Json } from "../ui/Json";
import { Progress } from "../ui/Progress";
import { Readable } from "../ui/Readable";
import type { CallStatus, ToolCall } from "./transcript";

const STATUS: Record<CallStatus, { text: string; icon: IconName }> = {
  running: { text: "running", icon: "again" },
  waiting: { text: "asks you", icon: "question" },
  done: { text: "done", icon: "check" },
  failed: { text: "failed", icon: "alert" },
};

export const ToolCard = memo(function ToolCard(props: {
  call: ToolCall;
  sending: ReadonlyMap<string, ElicitResponse>;
  refusals: ReadonlyMap<string, string>;
  onReply: (elicit: Elicit, reply: Reply) => unknown;
}): ReactNode {
  const { call } = props;
  const { text, icon } = STATUS[call.status];
  return (
    <article className="tool" data-status={call.status} aria-label={`Tool ${dotted(call.name)}`}>
      <details className="tool-details">
        <summary>
          <Icon name={icon} className={call.status === "running" ? "tool-icon turning" : "tool-icon"} />
          <span className="tool-name">{dotted(call.name)}</span>
          <span className="tool-status">{text}</span>
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
              <h3>Error</h3>
              <p className="tool-error">{call.error}</p>
            </>
          )}
        </div>
      </details>
      {call.progress !== null && call.status === "running" && (
        <div className="tool-progress">
          <Progress {...call.progress} />
        </div>
      )}
      {call.questions.map((elicit) => (
        <QuestionCard
          key={elicit.elicitId}
          question={fromElicit(elicit)}
          busy={props.sending.has(elicit.elicitId)}
          error={props.refusals.get(elicit.elicitId) ?? null}
          onReply={(reply) => props.onReply(elicit, reply)}
        />
      ))}
    </article>
  );
});

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
  return <p className="tool-text">{content || "(no output)"}</p>;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}
