/** What a tool gave beside text: pictures and sound are shown, files can be saved, links lead where they say. */
import { type ReactNode, useEffect, useState } from "react";
import { fetchFile } from "../api/chat";
import { readable } from "../api/http";
import type { ContentPart } from "../api/types";
import { Icon } from "../ui/Icon";
import { SafeLink } from "../ui/Markdown";
import { nameText, sizeText } from "../ui/size";
import { save } from "./save";

export function Parts(props: { conversation: string | null; parts: readonly ContentPart[] }): ReactNode {
  const { conversation, parts } = props;
  if (parts.length === 0) return null;
  return (
    <ul className="parts" aria-label="Pictures and files">
      {parts.map((part, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: a part is what it is by its place
        <li key={n}>
          {part.kind === "link" ? (
            <LinkPart part={part} />
          ) : conversation !== null && part.file && part.kind !== "file" ? (
            <Media conversation={conversation} part={part} file={part.file} />
          ) : (
            <FilePart conversation={conversation} part={part} />
          )}
        </li>
      ))}
    </ul>
  );
}

/** The address of a file for this page alone; the key that the server asks for cannot stand in a `src`. */
function useFile(conversation: string, file: string): { url: string | null; error: string | null } {
  const [url, setUrl] = useState<string | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    const abort = new AbortController();
    let made: string | null = null;
    fetchFile(conversation, file, abort.signal).then(
      (blob) => {
        if (abort.signal.aborted) return;
        made = URL.createObjectURL(blob);
        setUrl(made);
      },
      (failure: unknown) => {
        if (!abort.signal.aborted) setError(readable(failure));
      },
    );
    return () => {
      abort.abort();
      if (made !== null) URL.revokeObjectURL(made);
    };
  }, [conversation, file]);
  return { url, error };
}

export function Media(props: { conversation: string; part: ContentPart; file: string }): ReactNode {
  const { part } = props;
  const { url, error } = useFile(props.conversation, props.file);
  if (error !== null)
    return (
      <p className="part-file">
        <Icon name="alert" /> {part.name}: {error}
      </p>
    );
  if (part.kind === "audio")
    return (
      <figure className="part-media">
        {/* biome-ignore lint/a11y/useMediaCaption: what a tool gives has none */}
        {url !== null && <audio controls src={url} aria-label={part.name} />}
        <figcaption>{caption(part)}</figcaption>
      </figure>
    );
  return (
    <figure className="part-media">
      {url !== null && <img src={url} alt={part.name} />}
      <figcaption>{caption(part)}</figcaption>
    </figure>
  );
}

function FilePart({ conversation, part }: { conversation: string | null; part: ContentPart }): ReactNode {
  const [error, setError] = useState<string | null>(null);
  const { file } = part;
  const get = async (): Promise<void> => {
    if (conversation === null || !file) return;
    try {
      save(part.name, await fetchFile(conversation, file, new AbortController().signal));
      setError(null);
    } catch (failure) {
      setError(readable(failure));
    }
  };
  return (
    <p className="part-file">
      <Icon name="file" />
      <span>{caption(part)}</span>
      {file ? (
        <button
          type="button"
          className="icon-button"
          aria-label={`Save ${part.name}`}
          title="Save"
          onClick={() => void get()}
        >
          <Icon name="download" />
        </button>
      ) : (
        <span className="muted">not kept</span>
      )}
      {error !== null && <span className="tool-error">{error}</span>}
    </p>
  );
}

function LinkPart({ part }: { part: ContentPart }): ReactNode {
  return (
    <p className="part-file">
      <Icon name="open" />
      <span>
        {/^https?:/i.test(part.uri ?? "") ? (
          <SafeLink href={part.uri ?? ""}>{caption(part)}</SafeLink>
        ) : (
          <>
            {caption(part)} <code>{part.uri}</code>
          </>
        )}
      </span>
    </p>
  );
}

const caption = ({ name, size }: ContentPart): string =>
  size ? `${nameText(name)}, ${sizeText(size)}` : nameText(name);
