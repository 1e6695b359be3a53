/** What a call asks: several plain questions are one form. */
import type { ReactNode } from "react";
import type { Elicit, ElicitResponse, Reply } from "../api/types";
import { bringIntoView, focusOn, QuestionCard } from "../questions/QuestionCard";
import { isPlain, QuestionGroup } from "../questions/QuestionGroup";
import { fromElicit } from "../questions/question";
import type { ToolCall } from "./transcript";

export type Answers = (readonly [Elicit, Reply])[];

export default function Questions(props: {
  call: ToolCall;
  sending: ReadonlyMap<string, ElicitResponse>;
  refusals: ReadonlyMap<string, string>;
  onReply: (...answers: Answers) => unknown;
}): ReactNode {
  const { call, sending, refusals, onReply } = props;
  const views = call.questions.map((elicit) => ({ elicit, view: fromElicit(elicit) }));
  const plain = views.filter(({ view }) => isPlain(view));
  const grouped = plain.length > 1 ? plain : [];
  const single = views.filter((one) => !grouped.includes(one));
  return (
    <>
      {grouped.length > 0 && (
        <QuestionGroup
          key={grouped.map(({ view }) => view.id).join(" ")}
          questions={grouped.map(({ view }) => view)}
          busy={grouped.some(({ view }) => sending.has(view.id))}
          error={grouped.map(({ view }) => refusals.get(view.id)).find(Boolean) ?? null}
          onReply={(replies) =>
            onReply(
              ...grouped.flatMap(({ elicit }, n) => {
                const reply = replies[n];
                return reply === undefined ? [] : [[elicit, reply] as const];
              }),
            )
          }
        />
      )}
      {single.map(({ elicit, view }) => (
        <QuestionCard
          key={view.id}
          question={view}
          busy={sending.has(view.id)}
          error={refusals.get(view.id) ?? null}
          onReply={(reply) => onReply([elicit, reply])}
        />
      ))}
    </>
  );
}

export function toFirstQuestion(): void {
  const card = document.querySelector<HTMLElement>(".transcript .question");
  focusOn(card);
  bringIntoView(card);
}
