/** The conversations, at the side; on a narrow screen in a drawer. */
import { lazy, type ReactNode, Suspense, useEffect, useRef, useState } from "react";
import { searchConversations } from "../api/chat";
import { readable } from "../api/http";
import type { ConversationSummary } from "../api/types";
import { Link } from "../router";
import { announce } from "../ui/Announcer";
import { Icon } from "../ui/Icon";
import { When } from "./When";

const ConversationDialog = lazy(() => import("./ConversationDialog"));

const PAUSE = 250;

export function ConversationList(props: {
  conversations: readonly ConversationSummary[];
  isListed: boolean;
  current: string | null;
  drawer: boolean;
  onClose: () => void;
  onDelete: (id: string) => Promise<void>;
  onRename: (id: string, title: string) => Promise<void>;
}): ReactNode {
  const { current, drawer, onClose } = props;
  const [chosen, setChosen] = useState<ConversationSummary | null>(null);
  const [query, setQuery] = useState("");
  const found = useSearch(query.trim());
  const conversations = found.list ?? props.conversations;
  const side = useRef<HTMLElement>(null);
  useEffect(() => {
    if (!drawer) return;
    const before = document.activeElement;
    side.current?.querySelector<HTMLElement>("a, button")?.focus();
    const onKey = (event: KeyboardEvent): void => {
      if (event.key === "Escape") onClose();
    };
    document.addEventListener("keydown", onKey);
    return () => {
      document.removeEventListener("keydown", onKey);
      if (before instanceof HTMLElement) before.focus();
    };
  }, [drawer, onClose]);
  return (
    <>
      {drawer && <div className="drawer-shade" onClick={onClose} aria-hidden="true" />}
      <aside
        ref={side}
        className="side"
        aria-label="Conversations"
        id="conversations"
        data-open={drawer || undefined}
      >
        <Link to={{ page: "chat", conversation: null }} className="button side-new" onClick={onClose}>
          <Icon name="plus" /> New conversation
        </Link>
        <search className="side-search">
          <Icon name="search" />
          <input
            type="search"
            aria-label="Search conversations"
            placeholder="Search"
            maxLength={200}
            value={query}
            onChange={(event) => setQuery(event.target.value)}
          />
        </search>
        <nav aria-label="Conversations">
          <ul className="side-list">
            {conversations.map((one) => (
              <li key={one.id} className="side-item" data-current={one.id === current || undefined}>
                <Link
                  to={{ page: "chat", conversation: one.id }}
                  aria-current={one.id === current ? "page" : undefined}
                  onClick={onClose}
                >
                  <span className="side-title">{one.title || "Untitled"}</span>
                  <Mark {...one} />
                  {one.snippet && <span className="side-snippet">{one.snippet}</span>}
                </Link>
                <button
                  type="button"
                  className="icon-button side-more"
                  aria-label={`More about ${one.title || "Untitled"}`}
                  title="Rename, export, delete"
                  onClick={() => setChosen(one)}
                >
                  <Icon name="more" />
                </button>
              </li>
            ))}
          </ul>
          {conversations.length === 0 && found.error === null && (
            <p className="side-empty">
              {found.list !== null
                ? "Nothing was found."
                : props.isListed
                  ? "What you say is kept here."
                  : "Loading…"}
            </p>
          )}
          {found.error !== null && <p className="side-empty">{found.error}</p>}
          {found.list !== null && !found.complete && (
            <p className="side-empty">There may be more: add a word.</p>
          )}
        </nav>
      </aside>
      {chosen !== null && (
        <Suspense>
          <ConversationDialog
            conversation={chosen}
            onRename={async (title) => {
              await props.onRename(chosen.id, title);
              found.forget();
            }}
            onDelete={async () => {
              await props.onDelete(chosen.id);
              found.forget();
            }}
            onClose={() => setChosen(null)}
          />
        </Suspense>
      )}
    </>
  );
}

interface Found {
  /** Nothing while nothing is looked for. */
  list: readonly ConversationSummary[] | null;
  complete: boolean;
  error: string | null;
}

const NOTHING: Found = { list: null, complete: true, error: null };

/** What the server finds for a query, a moment after the last letter. */
function useSearch(query: string): Found & { forget: () => void } {
  const [found, setFound] = useState(NOTHING);
  const [times, setTimes] = useState(0);
  // biome-ignore lint/correctness/useExhaustiveDependencies: it is looked for again when something has changed
  useEffect(() => {
    if (!query) {
      setFound(NOTHING);
      return;
    }
    const abort = new AbortController();
    const look = async (): Promise<void> => {
      try {
        const { conversations: list, complete } = await searchConversations(query, abort.signal);
        setFound({ list, complete, error: null });
        announce(`${list.length} found`);
      } catch (error) {
        if (!abort.signal.aborted) setFound({ list: [], complete: true, error: readable(error) });
      }
    };
    const timer = setTimeout(() => void look(), PAUSE);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [query, times]);
  return { ...found, forget: () => setTimes((before) => before + 1) };
}

function Mark({ waiting, running, updated }: ConversationSummary): ReactNode {
  if (waiting) return <span className="side-mark side-mark-waiting">asks</span>;
  if (running) return <span className="side-mark">running</span>;
  return (
    <span className="side-mark">
      <When time={Number(updated)} />
    </span>
  );
}
