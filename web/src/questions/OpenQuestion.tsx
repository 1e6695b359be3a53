/** A question that waits in the journal, to be answered here. */
import { type ReactNode, useState } from "react";
import { readable } from "../api/http";
import type { AskedQuestion, Reply } from "../api/types";
import { QuestionCard } from "./QuestionCard";
import { fromRequest, toAnswer } from "./question";

export function OpenQuestion(props: {
  asked: AskedQuestion;
  id: string;
  /** Send the answer; what it fails with is shown with the question. */
  send: (answer: unknown) => Promise<void>;
}): ReactNode {
  const { asked, id, send } = props;
  const [question] = useState(() =>
    fromRequest({
      request_id: id,
      request_type: asked.question,
      ...(asked.until === null ? {} : { timeout_ms: Date.parse(asked.until) - Date.now() }),
    }),
  );
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const reply = async (given: Reply): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      await send(toAnswer(asked.question, given));
    } catch (failure) {
      setError(readable(failure));
      setBusy(false);
    }
  };
  return (
    <QuestionCard question={question} onReply={(given) => void reply(given)} busy={busy} error={error} />
  );
}
