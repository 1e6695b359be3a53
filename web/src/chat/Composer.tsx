/** Where the person writes: a message, with pictures if the model takes them. */
import {
  type ClipboardEvent,
  type DragEvent,
  type KeyboardEvent,
  type ReactNode,
  type RefObject,
  useLayoutEffect,
  useRef,
  useState,
} from "react";
import type { ModelInfo } from "../api/types";
import { announce } from "../ui/Announcer";
import { Icon } from "../ui/Icon";
import { MOST_FILES, readFiles, TYPES } from "./attach";
import type { NewFile } from "./store";
import { tooLong } from "./transcript";

export function Composer(props: {
  ref: RefObject<HTMLTextAreaElement | null>;
  draft: string;
  onDraft: (text: string) => void;
  files: readonly NewFile[];
  onFiles: (files: readonly NewFile[]) => void;
  onSend: (text: string) => void;
  onStop: () => void;
  running: boolean;
  /** A tool waits for an answer. */
  asking: boolean;
  model: ModelInfo | null;
  models: readonly ModelInfo[];
  onModel: (name: string) => void;
}): ReactNode {
  const { ref, draft, running, model, files } = props;
  const [fault, setFault] = useState<string | null>(null);
  const picker = useRef<HTMLInputElement>(null);
  const text = draft.trim();
  const takesImages = model?.images === true;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the height follows the text
  useLayoutEffect(() => {
    const area = ref.current;
    if (area === null) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, 200)}px`;
  }, [draft, ref]);
  const send = (): void => {
    if (!text || running) return;
    const refused = tooLong(text);
    setFault(refused);
    if (refused === null) props.onSend(text);
  };
  const onKey = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    send();
  };
  const add = async (list: FileList | null | undefined): Promise<void> => {
    if (!list?.length || !takesImages) return;
    const { read, refused } = await readFiles([...list], MOST_FILES - files.length);
    setFault(refused);
    if (read.length) {
      props.onFiles([...files, ...read]);
      announce(`${read.length === 1 ? "Picture" : "Pictures"} attached`);
    }
  };
  const onDrop = (event: DragEvent): void => {
    if (!takesImages || event.dataTransfer.files.length === 0) return;
    event.preventDefault();
    void add(event.dataTransfer.files);
  };
  const onPaste = (event: ClipboardEvent): void => {
    if (!takesImages || event.clipboardData.files.length === 0) return;
    event.preventDefault();
    void add(event.clipboardData.files);
  };
  return (
    <form
      className="composer"
      onDragOver={(event) => takesImages && event.preventDefault()}
      onDrop={onDrop}
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      {fault !== null && (
        <p className="composer-fault" role="alert">
          <Icon name="alert" /> {fault}
        </p>
      )}
      {files.length > 0 && (
        <ul className="attached" aria-label="Attached pictures">
          {files.map((file, n) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: two may be the same
            <li key={n}>
              <img src={`data:${file.info.type};base64,${file.data}`} alt={file.info.name} />
              <button
                type="button"
                className="icon-button"
                aria-label={`Remove ${file.info.name}`}
                onClick={() => props.onFiles(files.filter((_, other) => other !== n))}
              >
                <Icon name="cross" />
              </button>
            </li>
          ))}
        </ul>
      )}
      <div className="composer-box">
        {takesImages && (
          <>
            <input
              ref={picker}
              type="file"
              hidden
              accept={TYPES.join(",")}
              multiple
              onChange={(event) => {
                void add(event.target.files);
                event.target.value = "";
              }}
            />
            <button
              type="button"
              className="icon-button composer-attach"
              aria-label="Attach pictures"
              title="Attach pictures"
              onClick={() => picker.current?.click()}
            >
              <Icon name="clip" />
            </button>
          </>
        )}
        <label className="sr-only" htmlFor="composer">
          Message
        </label>
        <textarea
          id="composer"
          ref={ref}
          rows={1}
          value={draft}
          placeholder={props.asking ? "A question waits for you above" : "Write a message"}
          aria-describedby="composer-model"
          onChange={(event) => props.onDraft(event.target.value)}
          onKeyDown={onKey}
          onPaste={onPaste}
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
      <div className="composer-model" id="composer-model">
        <ModelLine model={model} models={props.models} onModel={props.onModel} running={running} />
      </div>
    </form>
  );
}

function ModelLine(props: {
  model: ModelInfo | null;
  models: readonly ModelInfo[];
  onModel: (name: string) => void;
  running: boolean;
}): ReactNode {
  const { model, models } = props;
  if (model === null) return "\u00a0";
  const script = model.scripted && (
    <>
      <span className="badge badge-warn">Scripted model</span>
      <span>Its words are written in advance; the tools are real.</span>
    </>
  );
  if (models.length < 2) return script || <>Model: {model.name}</>;
  return (
    <>
      <label className="composer-picker">
        Model:{" "}
        <select
          value={model.name}
          disabled={props.running}
          onChange={(event) => props.onModel(event.target.value)}
        >
          {models.map(({ name }) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
      {script}
    </>
  );
}
