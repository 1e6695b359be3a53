/** A question that waits in the journal, to be answered here. */
import { type ReactNode, useState } from "react";
import { readable } from "../api/http";
import type { AskedQuestion, Given, Reply, Shown } from "../api/types";
import { QuestionCard } from "./QuestionCard";
import { fromRequest, toAnswer } from "./question";

export function OpenQuestion(props: {
  asked: AskedQuestion;
  id: string;
  /** Send the answer; what it fails with is shown with the question. Gives the component that asks for more. */
  send: (given: Given) => Promise<Shown | null>;
}): ReactNode {
  const { asked, id, send } = props;
  const [question, setQuestion] = useState(() => ({
    ...fromRequest({
      request_id: id,
      request_type: asked.question,
      ...(asked.until === null ? {} : { timeout_ms: Date.parse(asked.until) - Date.now() }),
    }),
    component: asked.component ?? null,
  }));
  /** What was answered in components. */
  const [rendered, setRendered] = useState<unknown[]>([]);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const reply = async (given: Reply): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      if (question.component === null || given.action !== "accept") {
        await send({ answer: toAnswer(asked.question, given) });
        return;
      }
      const answers = [...rendered, given.content ?? null];
      const component = await send({ rendered: answers });
      if (component === null) return;
      setRendered(answers);
      setQuestion({ ...question, component });
      setBusy(false);
    } catch (failure) {
      setError(readable(failure));
      setBusy(false);
    }
  };
  return (
    <QuestionCard
      key={rendered.length}
      question={question}
      onReply={(given) => void reply(given)}
      busy={busy}
      error={error}
    />
  );
}
