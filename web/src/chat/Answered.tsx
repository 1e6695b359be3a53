/** Questions that are over, each with what the person did about it. */
import { memo, type ReactNode } from "react";
import type { AnsweredQuestion, Schema } from "../api/types";
import { choicesOf, isObject } from "../forms/schema";
import { humanPart } from "../questions/question";
import { Icon } from "../ui/Icon";
import { Markdown } from "../ui/Markdown";
import { Readable } from "../ui/Readable";

const REFUSALS = { decline: "You declined", cancel: "You cancelled", dropped: "Not answered" } as const;

export const Answered = memo(function Answered({ list }: { list: readonly AnsweredQuestion[] }): ReactNode {
  if (list.length === 0) return null;
  return (
    <ul className="answered" aria-label="Answered questions">
      {list.map((one) => (
        <li key={one.elicitId} data-action={one.action}>
          <Icon name={one.action === "accept" ? "check" : "cross"} />
          <div className="answered-question">
            <Markdown text={humanPart(one.message)} />
          </div>
          <div className="answered-answer">
            {one.action === "accept" ? <Answer {...one} /> : REFUSALS[one.action]}
          </div>
        </li>
      ))}
    </ul>
  );
});

function Answer({ content, schema }: AnsweredQuestion): ReactNode {
  if (content === undefined || content === null) return "Done";
  const shown = schema ? named(content, schema) : content;
  const values = isObject(shown) ? Object.values(shown) : [shown];
  if (values.length === 0) return "Done"; // of a page that was to be visited
  // The name of the only field says nothing that the question did not.
  return <Readable value={values.length === 1 ? values[0] : shown} />;
}

/** The content of an answer, with choices by the names that the person has seen. */
function named(content: unknown, schema: Schema): unknown {
  if (!isObject(content)) return content;
  return Object.fromEntries(
    Object.entries(content).map(([name, value]) => {
      const field = schema.properties?.[name] ?? {};
      if (Array.isArray(value)) {
        const items = typeof field.items === "object" ? field.items : {};
        return [name, value.map((one) => label(one, items, schema))];
      }
      return [name, label(value, field, schema)];
    }),
  );
}

function label(value: unknown, field: Schema, root: Schema): unknown {
  return choicesOf(field, root)?.find((choice) => choice.value === value)?.label ?? value;
}
