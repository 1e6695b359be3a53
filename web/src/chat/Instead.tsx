/**
 * Somebody has written a message while a tool waits for an answer. A message would end the call, so they choose:
 * answer first, ask the model something and leave the question open, or drop it.
 */
import { type ReactNode, useEffect, useRef } from "react";
import type { Elicit } from "../api/types";
import { shortened } from "../notices/waiting";
import { humanPart } from "../questions/question";
import { plainText } from "../ui/Markdown";

export function Instead(props: {
  questions: readonly Elicit[];
  onAnswer: () => void;
  onAside: () => void;
  onDrop: () => void;
  onClose: () => void;
}): ReactNode {
  const { questions } = props;
  const first = useRef<HTMLButtonElement>(null);
  useEffect(() => first.current?.focus(), []);
  const [only] = questions;
  const several = questions.length > 1;
  return (
    <section
      className="instead"
      aria-label="A question waits"
      onKeyDown={(event) => {
        if (event.key === "Escape") props.onClose();
      }}
    >
      <p>
        <strong>{only?.toolName}</strong> waits for your{" "}
        {several
          ? `answers to ${questions.length} questions.`
          : `answer: “${shortened(plainText(humanPart(only?.message ?? "")))}”`}
      </p>
      <div className="form-actions">
        <button ref={first} type="button" className="button button-primary" onClick={props.onAnswer}>
          Answer {several ? "them" : "it"}
        </button>
        <button type="button" className="button" onClick={props.onAside}>
          Ask the model first
        </button>
        <button type="button" className="button button-danger-quiet" onClick={props.onDrop}>
          Drop {several ? "them" : "it"} and send
        </button>
      </div>
      <p className="muted">
        If you ask the model first, {several ? "the questions stay" : "the question stays"} open. If you drop{" "}
        {several ? "them" : "it"}, the tool ends without an answer.
      </p>
    </section>
  );
}
