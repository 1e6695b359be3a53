/** What was said, with the tools that were called in between. It follows its end as long as the person is there. */
import { memo, type ReactNode, useLayoutEffect, useRef } from "react";
import { Icon } from "../ui/Icon";
import { Markdown } from "../ui/Markdown";
import type { ChatState, ChatStore } from "./store";
import { ToolCard } from "./ToolCard";
import { type Entry, questionsOf } from "./transcript";

const NEAR = 80;

export function TranscriptView({ state, store }: { state: ChatState; store: ChatStore }): ReactNode {
  const { transcript, phase } = state;
  const scroll = useRef<HTMLElement>(null);
  const atEnd = useRef(true);
  const isRunning = phase === "running";
  const last = transcript.at(-1);

  // biome-ignore lint/correctness/useExhaustiveDependencies: it follows whatever is added
  useLayoutEffect(() => {
    const box = scroll.current;
    const isAsking = questionsOf(transcript).length > 0; // then the question comes into view by itself
    if (box !== null && ((atEnd.current && !isAsking) || last?.kind === "user"))
      box.scrollTop = box.scrollHeight;
  }, [transcript, isRunning]);

  const onScroll = (): void => {
    const box = scroll.current;
    if (box !== null) atEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
  };
  const isThinking =
    isRunning &&
    (last?.kind !== "assistant" || (last.calls.length > 0 && last.calls.every((c) => c.result || c.error)));
  return (
    <section
      ref={scroll}
      className="chat-scroll"
      onScroll={onScroll}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard
      tabIndex={0}
      aria-label="Conversation"
    >
      <ol className="transcript">
        {transcript.map((entry, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: an entry is what it is by its place
          <li key={n} className={`entry-${entry.kind}`}>
            <EntryView
              entry={entry}
              state={state}
              store={store}
              streaming={isRunning && n === transcript.length - 1}
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
}

function EntryView(props: {
  entry: Entry;
  state: ChatState;
  store: ChatStore;
  streaming: boolean;
}): ReactNode {
  const { entry, state, store } = props;
  switch (entry.kind) {
    case "user":
      return (
        <>
          <h2 className="sr-only">You said</h2>
          <p className="bubble" data-unsent={entry.unsent !== undefined || undefined}>
            {entry.text}
          </p>
          {entry.unsent !== undefined && (
            <p className="unsent" role="alert">
              <Icon name="alert" /> Not sent: {entry.unsent}
              <button
                type="button"
                className="button button-small"
                onClick={() => void store.resend(entry.text)}
              >
                Retry
              </button>
            </p>
          )}
        </>
      );
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
      return (
        <>
          <h2 className="sr-only">The assistant said</h2>
          <Thoughts text={entry.thinking} open={props.streaming && !entry.text && entry.calls.length === 0} />
          {entry.text && <Markdown text={entry.text} />}
          {entry.calls.map((call) => (
            <ToolCard
              key={call.id}
              call={call}
              sending={state.sending}
              refusals={state.refusals}
              onReply={store.answer}
            />
          ))}
        </>
      );
  }
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
