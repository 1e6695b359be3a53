/**
 * Several questions that a tool asks at once: one form with one button. The focus comes to the first of them,
 * unless the person is in the middle of writing something.
 */
import { type FormEvent, type ReactNode, useEffect, useId, useMemo, useRef, useState } from "react";
import type { Reply } from "../api/types";
import { isBounded } from "../forms/bounds";
import { check } from "../forms/check";
import { FormContext, type FormState } from "../forms/context";
import { Field } from "../forms/Field";
import { Properties } from "../forms/groups";
import { initial, kindOf, resolve } from "../forms/schema";
import { announce } from "../ui/Announcer";
import { Icon } from "../ui/Icon";
import { Markdown } from "../ui/Markdown";
import { Readable } from "../ui/Readable";
import { bringIntoView, focusOn, isBusyElsewhere, isSaid, TimeLeft } from "./QuestionCard";
import { type QuestionView, yesOrNo } from "./question";

/** Whether a question fits into a form with others. */
export const isPlain = (question: QuestionView): boolean =>
  question.component === null && question.url === null;

export function QuestionGroup(props: {
  questions: readonly QuestionView[];
  onReply: (replies: Reply[]) => void;
  busy: boolean;
  error: string | null;
}): ReactNode {
  const { questions, busy } = props;
  const card = useRef<HTMLFormElement>(null);
  const id = useId();
  const [values, setValues] = useState<unknown[]>(() => questions.map(proposed));
  const [tried, setTried] = useState(false);
  const faults = useMemo(
    () => questions.map((question, n) => (tried ? faultsOf(question, values[n]) : NONE)),
    [questions, values, tried],
  );
  const first = questions[0]?.message ?? "";
  const limits = questions.flatMap(({ deadline }) => deadline ?? []);
  useEffect(() => {
    announce(`${questions.length} questions. ${first}`);
    if (!isBusyElsewhere()) focusOn(card.current);
    bringIntoView(card.current);
  }, [questions.length, first]);
  const all = (reply: Reply): void => props.onReply(questions.map(() => reply));
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    if (busy) return;
    setTried(true);
    if (questions.every((question, n) => faultsOf(question, values[n]).size === 0)) {
      props.onReply(values.map((content) => ({ action: "accept", content })));
      return;
    }
    requestAnimationFrame(() => card.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
  };
  return (
    <form
      ref={card}
      className="question question-group"
      aria-labelledby={id}
      aria-busy={busy}
      tabIndex={-1}
      noValidate
      onSubmit={submit}
    >
      <h3 id={id}>{questions.length} questions</h3>
      {questions.map((question, n) => (
        <One
          key={question.id}
          question={question}
          value={values[n]}
          onChange={(value) => setValues(values.map((old, other) => (other === n ? value : old)))}
          faults={faults[n] ?? NONE}
          disabled={busy}
        />
      ))}
      {props.error && (
        <p className="question-error" role="alert">
          <Icon name="alert" /> {props.error}
        </p>
      )}
      <div className="form-actions">
        <button type="submit" className="button button-primary" disabled={busy}>
          {busy ? "Sending…" : "Answer all"}
        </button>
        <div className="question-refusals">
          {limits.length > 0 && <TimeLeft deadline={Math.min(...limits)} />}
          <button
            type="button"
            className="button button-quiet"
            disabled={busy}
            onClick={() => all({ action: "decline" })}
          >
            Decline all
          </button>
          <button
            type="button"
            className="button button-quiet"
            disabled={busy}
            onClick={() => all({ action: "cancel" })}
          >
            Cancel
          </button>
        </div>
      </div>
    </form>
  );
}

const NONE: ReadonlyMap<string, string> = new Map();

/** What is filled in beforehand. */
function proposed(question: QuestionView): unknown {
  const root = rootOf(question);
  return initial(root, root, true);
}

const rootOf = ({ schema }: QuestionView): QuestionView["schema"] => (isBounded(schema) ? schema : {});

function faultsOf(question: QuestionView, value: unknown): ReadonlyMap<string, string> {
  const root = rootOf(question);
  const confirm = yesOrNo(root);
  if (confirm !== null) {
    const given = (value as Record<string, unknown> | undefined)?.[confirm.name];
    return typeof given === "boolean" ? NONE : new Map([[confirm.name, "Choose yes or no"]]);
  }
  const found = new Map<string, string>();
  for (const { path, message } of check(root, root, value)) if (!found.has(path)) found.set(path, message);
  return found;
}

function One(props: {
  question: QuestionView;
  value: unknown;
  onChange: (value: unknown) => void;
  faults: ReadonlyMap<string, string>;
  disabled: boolean;
}): ReactNode {
  const { question, value, onChange, faults, disabled } = props;
  const id = useId();
  const root = useMemo(() => rootOf(question), [question]);
  const own = useMemo(() => resolve(root, root), [root]);
  const kind = useMemo(() => kindOf(own, root), [own, root]);
  const state = useMemo<FormState>(() => ({ root, faults, id, disabled }), [root, faults, id, disabled]);
  const confirm = yesOrNo(root);
  const quiet = isSaid(question) ? { quiet: true } : {};
  return (
    <fieldset className="question-one" aria-labelledby={`${id}-asked`}>
      <div className="question-message" id={`${id}-asked`}>
        <Markdown text={question.message} />
      </div>
      {question.context !== null && (
        <div className="question-context">
          <Readable value={question.context} />
        </div>
      )}
      <FormContext value={state}>
        {confirm !== null ? (
          <YesOrNo
            name={confirm.name}
            value={(value as Record<string, unknown> | undefined)?.[confirm.name]}
            onChange={(yes) => onChange({ [confirm.name]: yes })}
            fault={faults.get(confirm.name) ?? null}
            id={id}
            disabled={disabled}
          />
        ) : kind.is === "object" ? (
          <Properties kind={kind} value={value} onChange={onChange} path="" {...quiet} />
        ) : (
          <Field
            schema={own}
            value={value}
            onChange={onChange}
            path=""
            label={own.title ?? "Value"}
            required
            {...quiet}
          />
        )}
      </FormContext>
    </fieldset>
  );
}

function YesOrNo(props: {
  name: string;
  value: unknown;
  onChange: (yes: boolean) => void;
  fault: string | null;
  id: string;
  disabled: boolean;
}): ReactNode {
  return (
    <div className="yes-or-no">
      {[true, false].map((yes) => (
        <label key={String(yes)}>
          <input
            type="radio"
            name={`${props.id}-${props.name}`}
            checked={props.value === yes}
            disabled={props.disabled}
            aria-invalid={props.fault !== null || undefined}
            onChange={() => props.onChange(yes)}
          />{" "}
          {yes ? "Yes" : "No"}
        </label>
      ))}
      {props.fault !== null && (
        <p className="field-fault" role="alert">
          {props.fault}
        </p>
      )}
    </div>
  );
}
