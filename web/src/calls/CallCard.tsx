/** One call: how it stands, what it asks, with the form to answer it, and what it has done. */
import { type ReactNode, useEffect, useId, useState } from "react";
import { answerCall, answerLinked, linkedQuestion, showCall } from "../api/calls";
import { readable } from "../api/http";
import type { AskedQuestion, CallDetails, CallEntry, CallSummary, Given, Schema, Shown } from "../api/types";
import { isObject } from "../forms/schema";
import { shortened } from "../notices/waiting";
import { OpenQuestion } from "../questions/OpenQuestion";
import { Link } from "../router";
import { announce } from "../ui/Announcer";
import { ageText } from "../ui/age";
import { type Content, ContentView, contentsOf, resultsOf } from "../ui/ContentView";
import { Icon, type IconName } from "../ui/Icon";
import { Json } from "../ui/Json";

const STATUS: Record<string, string> = {
  awaiting_answer: "waiting",
  awaiting_sample: "waiting for a model",
  diverged: "stopped: its code has changed",
  poisoned: "given up",
};

export function CallCard(props: {
  call: CallSummary;
  admin: boolean;
  onAbort: () => void;
  onAnswered: () => void;
}): ReactNode {
  const { call, admin } = props;
  const [isOpen, setOpen] = useState(false);
  const mayAct = call.own || admin;
  const details = useId();
  return (
    <li className="call" data-waiting={call.waiting || undefined} data-call={call.id}>
      <div className="call-head">
        <span className="call-method">{call.method}</span>
        <span className={call.waiting ? "badge badge-accent" : "badge"} data-status={call.status}>
          {STATUS[call.status] ?? call.status}
        </span>
        {!call.own && call.caller !== null && <span className="muted">called by {call.caller}</span>}
        <span className="call-age" title={momentText(call.ended ?? call.age)}>
          <Icon name="clock" />
          <span>
            {call.ended === undefined ? `${ageText(call.age)}` : `ended ${ageText(call.ended)} ago`}
            <span className="sr-only">{call.ended === undefined ? " old" : ""}</span>
          </span>
        </span>
      </div>
      {call.questions.length > 0 && (
        <ul className="call-questions" aria-label="Open questions">
          {call.questions.map((question) =>
            "key" in question ? (
              <AskedHere
                key={question.place}
                call={call}
                question={question}
                admin={admin}
                onAnswered={props.onAnswered}
              />
            ) : (
              <li key={question.request_id}>
                <Message message={question.message} age={question.age} who="whoever runs it" />
              </li>
            ),
          )}
        </ul>
      )}
      <div className="call-foot">
        {mayAct && (
          <button
            type="button"
            className="button button-small"
            aria-expanded={isOpen}
            aria-controls={details}
            onClick={() => setOpen(!isOpen)}
          >
            <Icon name="chevron" className="fold" /> Details
            <span className="sr-only"> of {call.method}</span>
          </button>
        )}
        {call.conversation !== undefined && (
          <Link to={{ page: "chat", conversation: call.conversation }} className="button button-small">
            <Icon name="chat" /> Conversation
          </Link>
        )}
        {mayAct && call.ended === undefined && (
          <button
            type="button"
            className="button button-small"
            aria-label={`Abort ${call.method}, ${call.id}`}
            onClick={props.onAbort}
          >
            Abort
          </button>
        )}
        <span className="call-id">{call.id}</span>
      </div>
      <div id={details} hidden={!isOpen}>
        {isOpen && <Details call={call} />}
      </div>
    </li>
  );
}

function AskedHere(props: {
  call: CallSummary;
  question: AskedQuestion;
  admin: boolean;
  onAnswered: () => void;
}): ReactNode {
  const { call, question } = props;
  const { link } = question;
  const [isOpen, setOpen] = useState(false);
  /** With its component, once that is known. */
  const [asked, setAsked] = useState<AskedQuestion | null>(link === undefined ? question : null);
  const form = useId();
  const isMine = link !== undefined;
  const who = question.to === null ? (call.own ? "you" : (call.caller ?? "the caller")) : named(question.to);
  const action = isMine ? "Answer" : `Answer for ${who}`;
  const toggle = (): void => {
    setOpen(!isOpen);
    if (link === undefined || asked !== null) return;
    // Without its component it is a form.
    linkedQuestion(link).then(setAsked, () => setAsked(question));
  };
  const send = async (given: Given): Promise<Shown | null> => {
    if (link !== undefined && "rendered" in given) {
      const more = await answerLinked(link, given);
      if (more !== null) return more;
    } else if ("answer" in given) await answerCall(call.id, question.key, given.answer);
    announce("Your answer was taken");
    props.onAnswered();
    return null;
  };
  return (
    <li>
      <Message
        message={question.message}
        age={question.age}
        who={isMine && question.to !== null ? `you (${who})` : who}
      >
        {(isMine || props.admin) && isForPerson(question) && (
          <button
            type="button"
            className={isOpen ? "button button-small" : "button button-small button-primary"}
            aria-expanded={isOpen}
            aria-controls={form}
            aria-label={`${isOpen ? "Close" : action}: ${question.message}`}
            onClick={toggle}
          >
            {isOpen ? "Close" : action}
          </button>
        )}
      </Message>
      <div id={form} hidden={!isOpen}>
        {isOpen &&
          (asked === null ? (
            <p className="muted">Loading…</p>
          ) : (
            <OpenQuestion asked={asked} id={`${call.id} ${question.place}`} send={send} />
          ))}
      </div>
    </li>
  );
}

const isForPerson = ({ question }: AskedQuestion): boolean =>
  ["Confirm", "Prompt", "Select", "Custom"].some((kind) => kind in question);

/** `scope:ops` is a group of people, all others are names. */
const named = (to: string): string => (to.startsWith("scope:") ? `anyone in ${to.slice(6)}` : to);

function Message(props: { message: string; age: number; who: string; children?: ReactNode }): ReactNode {
  return (
    <div className="call-question">
      <Icon name="question" />
      <span className="call-message">{shortened(props.message)}</span>
      <span className="muted" title={momentText(props.age)}>
        asked of {props.who} {ageText(props.age)} ago
      </span>
      {props.children}
    </div>
  );
}

/** What a call was given, what it did, and what it came to. */
function Details({ call }: { call: CallSummary }): ReactNode {
  const [found, setFound] = useState<CallDetails | null>(null);
  const [error, setError] = useState<string | null>(null);
  const stands = `${call.status} ${call.questions.map((one) => ("place" in one ? one.place : "")).join(" ")}`;
  // biome-ignore lint/correctness/useExhaustiveDependencies: read again when the call has gone on
  useEffect(() => {
    let current = true;
    showCall(call.id).then(
      (details) => {
        if (current) setFound(details);
        if (current) setError(null);
      },
      (failure: unknown) => current && setError(readable(failure)),
    );
    return () => {
      current = false;
    };
  }, [call.id, stands]);
  if (error !== null) return <p className="question-error">{error}</p>;
  if (found === null) return <p className="muted">Loading…</p>;
  const { outcome, returns } = found;
  const failure = outcome?.error;
  const shown = outcome == null ? null : contentsIn(outcome, returns, call.method.split(".").pop() ?? "file");
  return (
    <div className="call-details">
      {found.arguments !== undefined && (
        <section>
          <h3>Arguments</h3>
          <Json value={found.arguments} label="arguments" />
        </section>
      )}
      {found.entries !== undefined && found.entries.length > 0 && (
        <section>
          <h3>Steps</h3>
          <ol className="call-trail">
            {found.entries.map((entry) => (
              <Entry key={entry.place} entry={entry} />
            ))}
          </ol>
        </section>
      )}
      {found.entries === undefined && <p className="muted">This call is not kept in the journal.</p>}
      {found.outcome != null && (
        <section>
          <h3>Outcome</h3>
          {failure?.message !== undefined ? (
            <p className={REFUSED.has(failure.code ?? "") ? "muted" : "question-error"}>
              <Icon name="alert" /> {failure.message}
            </p>
          ) : shown !== null ? (
            shown.map((content, n) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: results have no other name
              <ContentView key={n} content={content} />
            ))
          ) : (
            <Json value={found.outcome} label="outcome" />
          )}
        </section>
      )}
    </div>
  );
}

/** What a call gave, as each protocol keeps it; of MCP, the structured result where that has bytes in it. */
function contentsIn(
  outcome: NonNullable<CallDetails["outcome"]>,
  returns: Schema | null | undefined,
  name: string,
): Content[] | null {
  const { contents, content, structuredContent, result = { content, structuredContent } } = outcome;
  if (Array.isArray(contents)) return contents.flatMap((one) => resultsOf(one, returns, name));
  if (!Array.isArray(result.content)) return null;
  const structured = resultsOf(result.structuredContent, returns, name);
  return structured.some(({ kind }) => kind === "file") ? structured : result.content.flatMap(contentsOf);
}

/** Whoever does not want to answer has not made it fail. */
const REFUSED = new Set(["declined", "cancelled"]);

const ENTRY_ICONS: Record<CallEntry["type"], IconName> = {
  step: "check",
  question: "question",
  value: "clock",
};

function Entry({ entry }: { entry: CallEntry }): ReactNode {
  return (
    <li className="call-entry" data-state={entry.state}>
      <Icon name={ENTRY_ICONS[entry.type] ?? "check"} />
      <span className="call-what">{entry.what}</span>
      <span className="badge">{entry.state}</span>
      {entry.value !== undefined && entry.value !== null && (
        <Json value={answerIn(entry)} label={`value of ${entry.what}`} />
      )}
    </li>
  );
}

/** The value of a step, or what was answered, without the word for the kind of question around it. */
function answerIn({ type, value }: CallEntry): unknown {
  const [only, ...more] = type === "question" && isObject(value) ? Object.values(value) : [];
  return only === undefined || more.length > 0 ? value : only;
}

const momentText = (secondsAgo: number): string => new Date(Date.now() - secondsAgo * 1000).toLocaleString();
