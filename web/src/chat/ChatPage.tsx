/** The chat: conversations at the side, what was said in the middle, what to say next at the bottom. */
import { type ReactNode, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { go } from "../router";
import { Icon } from "../ui/Icon";
import { Composer } from "./Composer";
import { ConversationList } from "./ConversationList";
import { Instead } from "./Instead";
import { ChatStore, type NewFile } from "./store";
import { loadQuestions } from "./ToolCard";
import { TranscriptView } from "./TranscriptView";
import { questionsOf } from "./transcript";
import { Missing, NoChat, Welcome } from "./Welcome";

const store = new ChatStore();

export function ChatPage({
  conversation,
  drawer,
  onDrawerClose,
}: {
  conversation: string | null;
  drawer: boolean;
  onDrawerClose: () => void;
}): ReactNode {
  const state = useSyncExternalStore(store.subscribe, () => store.state);
  const composer = useRef<HTMLTextAreaElement>(null);
  const [draft, setDraft] = useState("");
  const [files, setFiles] = useState<readonly NewFile[]>([]);
  const [choosing, setChoosing] = useState(false);
  const questions = questionsOf(state.transcript);
  const isAsking = questions.length > 0;

  useEffect(() => store.start(), []);
  useEffect(() => void loadQuestions().catch(() => {}), []);
  useEffect(() => {
    store.onBegun = (id) => go({ page: "chat", conversation: id }, { replace: true });
    store.open(conversation);
  }, [conversation]);
  useEffect(() => {
    // Whoever has nothing else to do goes on writing.
    if (
      state.phase === "idle" &&
      (document.activeElement === null || document.activeElement === document.body)
    ) {
      composer.current?.focus({ preventScroll: true });
    }
  }, [state.phase]);
  const title = state.conversations.find((one) => one.id === state.conversationId)?.title;
  useEffect(() => {
    document.title = title ? `${title} · midcall` : "midcall";
  }, [title]);

  const say = (text: string, aside: boolean): void => {
    setDraft("");
    setFiles([]);
    setChoosing(false);
    void store.send(text, { aside, attachments: [...files] });
  };
  // A message would end what waits for an answer: that is for the person to say.
  const send = (text: string): void => (isAsking ? setChoosing(true) : say(text, false));
  const toQuestion = (): void => {
    setChoosing(false);
    void loadQuestions().then(({ toFirstQuestion }) => toFirstQuestion());
  };
  const closeChoice = (): void => {
    setChoosing(false);
    composer.current?.focus();
  };
  const isEmpty = state.transcript.length === 0 && state.conversationId === null;
  return (
    <div className="chat" data-without={state.noChat || undefined}>
      <ConversationList
        conversations={state.conversations}
        isListed={state.isListed}
        current={state.conversationId}
        drawer={drawer}
        onClose={onDrawerClose}
        onDelete={async (id) => {
          await store.remove(id);
          if (id === store.state.conversationId) go({ page: "chat", conversation: null });
        }}
        onRename={(id, title) => store.rename(id, title)}
      />
      <main className="chat-main" id="main">
        {state.phase === "loading" ? (
          <div className="chat-scroll chat-loading">
            <p className="muted" role="status">
              Loading the conversation…
            </p>
          </div>
        ) : state.noChat ? (
          <NoChat />
        ) : state.isMissing ? (
          <Missing />
        ) : isEmpty ? (
          <Welcome
            info={state.info}
            onSuggestion={(text) => void store.send(text)}
            disabled={state.phase !== "idle"}
          />
        ) : (
          <TranscriptView state={state} store={store} />
        )}
        {state.error !== null && (
          <div className="banner banner-error" role="alert">
            <Icon name="alert" />
            <span>{state.error.text}</span>
            {state.error.retry !== null && (
              <button type="button" className="button button-small" onClick={state.error.retry}>
                Retry
              </button>
            )}
            <button
              type="button"
              className="icon-button"
              aria-label="Dismiss"
              onClick={() => store.dismissError()}
            >
              <Icon name="cross" />
            </button>
          </div>
        )}
        {state.offline && (
          <div className="banner" role="status">
            <Icon name="again" className="turning" />
            Connection lost. Reconnecting…
          </div>
        )}
        {choosing && isAsking && (
          <Instead
            questions={questions}
            onAnswer={toQuestion}
            onAside={() => say(draft.trim(), true)}
            onDrop={() => say(draft.trim(), false)}
            onClose={closeChoice}
          />
        )}
        {!state.noChat && !state.isMissing && (
          <Composer
            ref={composer}
            draft={draft}
            onDraft={setDraft}
            files={files}
            onFiles={setFiles}
            onSend={send}
            onStop={() => void store.stop()}
            running={state.phase === "running"}
            asking={isAsking}
            model={state.model ?? state.info?.model ?? null}
            models={state.info?.models ?? []}
            onModel={(name) => store.choose(name)}
          />
        )}
      </main>
    </div>
  );
}
