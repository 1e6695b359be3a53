/**
 * One question, with its component or a form, and the ways not to answer it. The focus comes here when the
 * question does, unless the person is in the middle of writing something.
 */
import { Component, type ReactNode, useEffect, useId, useRef, useState } from "react";
import type { Reply } from "../api/types";
import { type ComponentProps, type QuestionComponent, useComponent } from "../components/registry";
import { SchemaForm } from "../forms/SchemaForm";
import { announce } from "../ui/Announcer";
import { ageText } from "../ui/age";
import { Icon } from "../ui/Icon";
import { Markdown } from "../ui/Markdown";
import { Readable } from "../ui/Readable";
import { type QuestionView, yesOrNo } from "./question";

export interface QuestionCardProps {
  question: QuestionView;
  onReply: (reply: Reply) => void;
  /** An answer is on its way. */
  busy: boolean;
  /** Why the last answer was not taken. */
  error?: string | null;
}

export function QuestionCard({ question, onReply, busy, error }: QuestionCardProps): ReactNode {
  const card = useRef<HTMLElement>(null);
  const id = useId();
  const { component } = question;
  const Shown = useComponent(component?.name);
  const isLoading = Shown === null;

  useEffect(() => {
    if (isLoading) return;
    announce(question.message);
    if (!isBusyElsewhere()) focusOn(card.current);
    bringIntoView(card.current);
  }, [isLoading, question.message]);

  const accept = (content?: unknown): void =>
    onReply(content === undefined ? { action: "accept" } : { action: "accept", content });
  const decline = (): void => onReply({ action: "decline" });
  const isComponent = Boolean(Shown) || isLoading;
  // Who is asked yes or no declines by "No".
  const isConfirm = !isComponent && question.url === null && yesOrNo(question.schema) !== null;
  const refusals = (
    <div className="question-refusals">
      {question.deadline !== null && <TimeLeft deadline={question.deadline} />}
      {!isConfirm && (
        <button type="button" className="button button-quiet" disabled={busy} onClick={decline}>
          Decline
        </button>
      )}
      <button
        type="button"
        className="button button-quiet"
        disabled={busy}
        onClick={() => onReply({ action: "cancel" })}
      >
        Cancel
      </button>
    </div>
  );
  return (
    <section
      ref={card}
      className="question"
      aria-labelledby={id}
      aria-busy={busy}
      tabIndex={-1}
      data-question={question.id}
    >
      <div className={Shown ? "sr-only" : "question-message"} id={id}>
        {!Shown && <Icon name="question" className="question-icon" />}
        <Markdown text={question.message} />
      </div>
      {Shown && component !== null ? (
        <Guarded name={component.name}>
          <Shown props={component.props} respond={accept} decline={decline} disabled={busy} />
        </Guarded>
      ) : isLoading ? (
        <p className="muted">Loading…</p>
      ) : (
        <Plain
          question={question}
          accept={accept}
          busy={busy}
          missing={component?.name ?? null}
          refusals={refusals}
        />
      )}
      {error && (
        <p className="question-error" role="alert">
          <Icon name="alert" /> {error}
        </p>
      )}
      {isComponent && refusals}
    </section>
  );
}

/** A question without a component: what it brings along to read, and a form from its schema. */
function Plain(props: {
  question: QuestionView;
  accept: (content?: unknown) => void;
  busy: boolean;
  missing: string | null;
  refusals: ReactNode;
}): ReactNode {
  const { question, accept, busy, missing, refusals } = props;
  const confirm = yesOrNo(question.schema);
  return (
    <>
      {missing !== null && (
        <p className="question-note">
          This page has no component <code>{missing}</code>, so the question is shown as a form.
        </p>
      )}
      {question.context !== null && (
        <div className="question-context">
          <Readable value={question.context} />
        </div>
      )}
      {question.url !== null ? (
        <Visit url={question.url} busy={busy} accept={accept} refusals={refusals} />
      ) : confirm !== null ? (
        <div className="form-actions">
          {[true, false].map((yes) => (
            <button
              key={String(yes)}
              type="button"
              className={yes === (confirm.default ?? true) ? "button button-primary" : "button"}
              disabled={busy}
              data-autofocus={yes === confirm.default || undefined}
              onClick={() => accept({ [confirm.name]: yes })}
            >
              {yes ? "Yes" : "No"}
            </button>
          ))}
          {refusals}
        </div>
      ) : (
        <SchemaForm
          schema={question.schema}
          onSubmit={accept}
          disabled={busy}
          quiet={isSaid(question)}
          actions={
            <>
              <button type="submit" className="button button-primary" disabled={busy}>
                {busy ? "Sending…" : "Answer"}
              </button>
              {refusals}
            </>
          }
        />
      )}
    </>
  );
}

const PLAIN_NAMES = new Set(["text", "choice", "choices", "answer", "value"]);

/** Whether the label of the only field would say again what is asked. */
export function isSaid({ schema, message }: QuestionView): boolean {
  const [only, ...more] = Object.entries(schema.properties ?? {});
  if (only === undefined) return true;
  return more.length === 0 && (only[1].title === message || PLAIN_NAMES.has(only[0]));
}

function Visit(props: { url: string; busy: boolean; accept: () => void; refusals: ReactNode }): ReactNode {
  const { url, busy, accept } = props;
  const safe = /^https?:\/\//i.test(url);
  return (
    <>
      <p className="question-url">
        <span className="muted">This opens</span> <code>{url}</code>
      </p>
      <div className="form-actions">
        {safe ? (
          <a className="button" href={url} target="_blank" rel="noopener noreferrer" data-autofocus>
            <Icon name="open" /> Open the page
          </a>
        ) : (
          <p className="question-error">This is not an address that a page may open.</p>
        )}
        <button type="button" className="button button-primary" disabled={busy} onClick={() => accept()}>
          I have been there
        </button>
        {props.refusals}
      </div>
    </>
  );
}

export function TimeLeft({ deadline }: { deadline: number }): ReactNode {
  const [left, setLeft] = useState(() => secondsTo(deadline));
  useEffect(() => {
    const timer = setInterval(() => setLeft(secondsTo(deadline)), 1000);
    return () => clearInterval(timer);
  }, [deadline]);
  return (
    <span className="question-time" role="timer">
      <Icon name="clock" /> {left > 0 ? `${ageText(left)} left` : "Time is up"}
    </span>
  );
}

const secondsTo = (deadline: number): number => Math.max(0, Math.ceil((deadline - performance.now()) / 1000));

/** A component that fails takes only itself out of the page. */
class Guarded extends Component<{ name: string; children: ReactNode }, { failure: string | null }> {
  override state = { failure: null as string | null };

  static getDerivedStateFromError(error: unknown): { failure: string } {
    return { failure: error instanceof Error ? error.message : String(error) };
  }

  override render(): ReactNode {
    if (this.state.failure === null) return this.props.children;
    return (
      <p className="question-error" role="alert">
        <Icon name="alert" /> The component {this.props.name} failed: {this.state.failure}
      </p>
    );
  }
}

/** Whether the person is at something else: writing a message, or at another question. */
export function isBusyElsewhere(): boolean {
  const focused = document.activeElement;
  if (focused?.closest(".question")) return true;
  return focused instanceof HTMLTextAreaElement && focused.value !== "";
}

export function focusOn(card: HTMLElement | null): void {
  if (card === null) return;
  const preferred = card.querySelector<HTMLElement>("[data-autofocus]");
  // Not a button: whoever presses Enter at that moment has not read the question yet.
  const first = card.querySelector<HTMLElement>("input, select, textarea, [role=grid] [tabindex='0']");
  (preferred ?? first ?? card).focus({ preventScroll: true });
}

/** All of it if there is room, else its beginning. */
export function bringIntoView(card: HTMLElement | null): void {
  const isTall = card !== null && card.offsetHeight > window.innerHeight * 0.7;
  card?.scrollIntoView({ block: isTall ? "start" : "nearest", behavior: calm() ? "auto" : "smooth" });
}

const calm = (): boolean => matchMedia("(prefers-reduced-motion: reduce)").matches;

export type { ComponentProps, QuestionComponent };
