/** The conversations, at the side; on a narrow screen in a drawer. */
import { type ReactNode, useEffect, useRef, useState } from "react";
import type { ConversationSummary } from "../api/types";
import { Link } from "../router";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";

export function ConversationList(props: {
  conversations: readonly ConversationSummary[];
  current: string | null;
  drawer: boolean;
  onClose: () => void;
  onDelete: (id: string) => Promise<void>;
}): ReactNode {
  const { conversations, current, drawer, onClose } = props;
  const [deleting, setDeleting] = useState<ConversationSummary | null>(null);
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
                </Link>
                <button
                  type="button"
                  className="icon-button side-delete"
                  aria-label={`Delete ${one.title || "Untitled"}`}
                  title="Delete"
                  onClick={() => setDeleting(one)}
                >
                  <Icon name="trash" />
                </button>
              </li>
            ))}
          </ul>
          {conversations.length === 0 && <p className="side-empty">What you say is kept here.</p>}
        </nav>
      </aside>
      {deleting !== null && (
        <Dialog title="Delete this conversation?" onClose={() => setDeleting(null)}>
          <p>“{deleting.title || "Untitled"}” and its open questions will be gone for good.</p>
          <div className="dialog-actions">
            <button type="button" className="button" onClick={() => setDeleting(null)}>
              Keep it
            </button>
            <button
              type="button"
              className="button button-danger"
              onClick={() => {
                setDeleting(null);
                void props.onDelete(deleting.id);
              }}
            >
              Delete
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

function Mark({ waiting, running }: ConversationSummary): ReactNode {
  if (waiting) return <span className="side-mark side-mark-waiting">asks</span>;
  return running ? <span className="side-mark">running</span> : null;
}
