import { type KeyboardEvent, type ReactNode, type RefObject, useLayoutEffect } from "react";
import type { ModelInfo } from "../api/types";
import { Icon } from "../ui/Icon";

export function Composer(props: {
  ref: RefObject<HTMLTextAreaElement | null>;
  draft: string;
  onDraft: (text: string) => void;
  onSend: (text: string) => void;
  onStop: () => void;
  running: boolean;
  model: ModelInfo | null;
}): ReactNode {
  const { ref, draft, running, model } = props;
  const text = draft.trim();
  // biome-ignore lint/correctness/useExhaustiveDependencies: the height follows the text
  useLayoutEffect(() => {
    const area = ref.current;
    if (area === null) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, 200)}px`;
  }, [draft, ref]);
  const send = (): void => {
    if (text && !running) props.onSend(text);
  };
  const onKey = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    send();
  };
  return (
    <form
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <div className="composer-box">
        <label className="sr-only" htmlFor="composer">
          Message
        </label>
        <textarea
          id="composer"
          ref={ref}
          rows={1}
          value={draft}
          placeholder="Write a message"
          aria-describedby="composer-model"
          onChange={(event) => props.onDraft(event.target.value)}
          onKeyDown={onKey}
        />
        {running ? (
          <button
            type="button"
            className="composer-button"
            aria-label="Stop"
            title="Stop"
            onClick={props.onStop}
          >
            <Icon name="stop" />
          </button>
        ) : (
          <button type="submit" className="composer-button" aria-label="Send" title="Send" disabled={!text}>
            <Icon name="send" />
          </button>
        )}
      </div>
      <p className="composer-model" id="composer-model">
        {model === null ? (
          "\u00a0"
        ) : model.scripted ? (
          <>
            <span className="badge badge-warn">Scripted model</span> Its words are written in advance; the
            tools are real.
          </>
        ) : (
          <>Model: {model.name}</>
        )}
      </p>
    </form>
  );
}
