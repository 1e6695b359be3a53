/** What was said, with the tools that were called in between. It follows its end as long as the person is there. */
import { memo, type ReactNode, useId, useLayoutEffect, useRef, useState } from "react";
import type { ElicitResponse } from "../api/types";
import { CopyButton } from "../ui/CopyButton";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";
import { Markdown } from "../ui/Markdown";
import { nameText } from "../ui/size";
import { Media } from "./Parts";
import type { ChatState, ChatStore } from "./store";
import { ToolCard } from "./ToolCard";
import { callsOf, type Entry, questionsOf, tooLong, type UserEntry } from "./transcript";
import { When } from "./When";

const NEAR = 80;

/** From how many letters, or lines, what was said is folded. */
const LONG = 2000;
const LINES = 24;

export const TranscriptView = memo(function TranscriptView({
  state,
  store,
}: {
  state: ChatState;
  store: ChatStore;
}): ReactNode {
  const { transcript, phase } = state;
  const title = state.conversations.find((one) => one.id === state.conversationId)?.title;
  const scroll = useRef<HTMLElement>(null);
  const atEnd = useRef(true);
  const top = useRef(0);
  const isRunning = phase === "running";
  const isAsking = questionsOf(transcript).length > 0;
  const last = transcript.at(-1);

  // biome-ignore lint/correctness/useExhaustiveDependencies: it follows whatever is added
  useLayoutEffect(() => {
    const box = scroll.current;
    if (box === null) return;
    // Whoever has scrolled up is not taken down before that is told.
    if (box.scrollTop < top.current && isAbove(box, 1)) atEnd.current = false;
    // A question comes into view by itself.
    if ((atEnd.current && !isAsking) || last?.kind === "user") box.scrollTop = box.scrollHeight;
  }, [transcript, isRunning]);

  const onScroll = (): void => {
    const box = scroll.current;
    if (box === null) return;
    // Whoever scrolls up, be it a little, reads there.
    atEnd.current = !isAbove(box, box.scrollTop < top.current ? 1 : NEAR);
    top.current = box.scrollTop;
  };
  const isThinking =
    isRunning &&
    (last?.kind !== "assistant" ||
      ((last.calls.length > 0 || last.closed === true) && last.calls.every((c) => c.result || c.error)));
  const lastAnswer = transcript.findLastIndex((entry) => entry.kind === "assistant");
  return (
    <section
      ref={scroll}
      className="chat-scroll"
      onScroll={onScroll}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard
      tabIndex={0}
      aria-label="Conversation"
    >
      <h1 className="sr-only">{title || "Conversation"}</h1>
      <ol className="transcript">
        {transcript.map((entry, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: an entry is what it is by its place
          <li key={n} className={`entry-${entry.kind}`}>
            <EntryView
              entry={entry}
              n={n}
              conversation={state.conversationId}
              store={store}
              isIdle={phase === "idle"}
              isAsking={isAsking}
              sending={state.sending}
              refusals={state.refusals}
              streaming={isRunning && n === transcript.length - 1}
              isLastAnswer={n === lastAnswer}
            />
          </li>
        ))}
        {isThinking && (
          <li className="entry-assistant">
            <span className="dots" role="img" aria-label="Thinking">
              <span />
              <span />
              <span />
            </span>
          </li>
        )}
      </ol>
    </section>
  );
});

/** Whether a box is scrolled further from its end than that. */
const isAbove = (box: HTMLElement, pixels: number): boolean =>
  box.scrollHeight - box.scrollTop - box.clientHeight > pixels;

interface EntryProps {
  n: number;
  conversation: string | null;
  store: ChatStore;
  isIdle: boolean;
  /** Whether a question waits for the person. */
  isAsking: boolean;
  sending: ReadonlyMap<string, ElicitResponse>;
  refusals: ReadonlyMap<string, string>;
  streaming: boolean;
  isLastAnswer: boolean;
}

/** One entry; while text streams in, only the last one changes. */
const EntryView = memo(function EntryView(props: EntryProps & { entry: Entry }): ReactNode {
  const { entry, store } = props;
  switch (entry.kind) {
    case "user":
      return <UserEntryView {...props} entry={entry} />;
    case "notice":
      return (
        <p className={`notice notice-${entry.tone}`} role={entry.tone === "error" ? "alert" : "status"}>
          {entry.tone === "error" && <Icon name="alert" />}
          <span>{entry.text}</span>
          {entry.retry && (
            <button type="button" className="button button-small" onClick={() => void store.retry()}>
              Retry
            </button>
          )}
        </p>
      );
    case "assistant":
      return <AssistantEntry {...props} entry={entry} />;
  }
});

function UserEntryView(props: EntryProps & { entry: UserEntry }): ReactNode {
  const { entry, n, conversation, isIdle, store } = props;
  const [draft, setDraft] = useState<string | null>(null);
  const pencil = useRef<HTMLButtonElement>(null);
  if (draft !== null) {
    const refused = tooLong(draft.trim());
    const maySend = Boolean(draft.trim()) && isIdle && refused === null;
    const send = (): void => {
      if (!maySend) return;
      setDraft(null);
      void store.edit(n, draft.trim());
    };
    const cancel = (): void => {
      setDraft(null);
      requestAnimationFrame(() => pencil.current?.focus());
    };
    return (
      <form
        className="edit"
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        <textarea
          // biome-ignore lint/a11y/noAutofocus: the person has just asked for it
          autoFocus
          aria-label="What you say instead"
          rows={Math.min(10, draft.split("\n").length + 1)}
          value={draft}
          onFocus={({ currentTarget: area }) => area.setSelectionRange(area.value.length, area.value.length)}
          onChange={(event) => setDraft(event.target.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") cancel();
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
          }}
        />
        {refused !== null && (
          <p className="composer-fault" role="alert">
            <Icon name="alert" /> {refused}
          </p>
        )}
        <p className="muted">What follows it is removed. What tools have done stays done.</p>
        <div className="form-actions">
          <button type="submit" className="button button-primary" disabled={!maySend}>
            Send again
          </button>
          <button type="button" className="button button-quiet" onClick={cancel}>
            Cancel
          </button>
        </div>
      </form>
    );
  }
  return (
    <>
      <h2 className="sr-only">You said</h2>
      <Said text={entry.text} unsent={entry.unsent !== undefined} />
      {entry.files?.map((file) =>
        file.id && conversation !== null ? (
          <Media key={file.id} conversation={conversation} part={{ kind: "image", ...file }} file={file.id} />
        ) : (
          <figure key={file.name} className="part-media">
            {file.data && <img src={`data:${file.type};base64,${file.data}`} alt={file.name} />}
            <figcaption>{nameText(file.name)}</figcaption>
          </figure>
        ),
      )}
      {entry.unsent === undefined ? (
        <div className="message-actions">
          {entry.time !== undefined && <When time={entry.time} />}
          <CopyButton text={entry.text} label="Copy what you said" />
          {isIdle && conversation !== null && (
            <button
              ref={pencil}
              type="button"
              className="icon-button"
              aria-label="Edit what you said"
              title="Edit and send again"
              onClick={() => setDraft(entry.text)}
            >
              <Icon name="pencil" />
            </button>
          )}
        </div>
      ) : (
        <p className="unsent" role="alert">
          <Icon name="alert" /> Not sent: {entry.unsent}
          <button type="button" className="button button-small" onClick={() => void store.resend(entry)}>
            Retry
          </button>
        </p>
      )}
    </>
  );
}

/** What the person said; of a long text, the beginning, until all of it is wanted. */
function Said({ text, unsent }: { text: string; unsent: boolean }): ReactNode {
  const [isOpen, setOpen] = useState(false);
  const id = useId();
  const isLong = text.length > LONG || text.split("\n", LINES + 1).length > LINES;
  return (
    <>
      <p
        className="bubble"
        id={id}
        data-unsent={unsent || undefined}
        data-folded={(isLong && !isOpen) || undefined}
      >
        {text}
      </p>
      {isLong && (
        <button
          type="button"
          className="button button-small"
          aria-expanded={isOpen}
          aria-controls={id}
          onClick={() => setOpen(!isOpen)}
        >
          {isOpen ? "Show less" : "Show all"}
        </button>
      )}
    </>
  );
}

function AssistantEntry(props: EntryProps & { entry: Extract<Entry, { kind: "assistant" }> }): ReactNode {
  const { entry, conversation, isIdle, isAsking, store } = props;
  return (
    <>
      <h2 className="sr-only">The assistant said</h2>
      <Thoughts text={entry.thinking} open={props.streaming && !entry.text && entry.calls.length === 0} />
      {entry.text && <Markdown text={entry.text} />}
      {entry.calls.map((call) => (
        <ToolCard
          key={call.id}
          call={call}
          conversation={conversation}
          sending={props.sending}
          refusals={props.refusals}
          onReply={store.answer}
          onAgain={isIdle && !isAsking ? store.callAgain : null}
        />
      ))}
      {entry.text && !props.streaming && (
        <div className="message-actions">
          {entry.time !== undefined && <When time={entry.time} />}
          <CopyButton text={entry.text} label="Copy what was said" />
          {isIdle && props.isLastAnswer && !isAsking && <Regenerate store={store} />}
        </div>
      )}
    </>
  );
}

/** Tools of the answer would be called again, so the person is told of them first. */
function Regenerate({ store }: { store: ChatStore }): ReactNode {
  const [asking, setAsking] = useState(false);
  const { transcript } = store.state;
  const from = transcript.findLastIndex((entry) => entry.kind === "user" && entry.unsent === undefined);
  const names = [...new Set(callsOf(transcript.slice(from)).map((call) => call.name.replaceAll("__", ".")))];
  if (from < 0) return null;
  return (
    <>
      <button
        type="button"
        className="icon-button"
        aria-label="Regenerate"
        title="Regenerate"
        onClick={() => (names.length ? setAsking(true) : void store.regenerate())}
      >
        <Icon name="again" />
      </button>
      {asking && (
        <Dialog title="Regenerate this?" onClose={() => setAsking(false)}>
          <p>
            This answer called {names.join(", ")}. What was done stays done, and the model may call it once
            more.
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
                void store.regenerate();
              }}
            >
              Regenerate
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

const Thoughts = memo(function Thoughts({ text, open }: { text: string; open: boolean }): ReactNode {
  if (!text) return null;
  return (
    <details className="thoughts">
      <summary>
        <Icon name="chevron" className="fold" />
        {open ? "Thinking…" : "Thoughts"}
      </summary>
      <p>{text}</p>
    </details>
  );
});
