/** What can be done with a conversation: rename it, take it along, delete it. */
import { type FormEvent, type ReactNode, useState } from "react";
import { exportConversation } from "../api/chat";
import { readable } from "../api/http";
import type { ConversationSummary } from "../api/types";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";
import { save } from "./save";

const LONGEST_TITLE = 200;

export default function ConversationDialog(props: {
  conversation: ConversationSummary;
  onRename: (title: string) => Promise<void>;
  onDelete: () => Promise<void>;
  onClose: () => void;
}): ReactNode {
  const { conversation, onClose } = props;
  const name = conversation.title || "Untitled";
  const [title, setTitle] = useState(conversation.title);
  const [deleting, setDeleting] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const attempt = async (work: () => Promise<void>): Promise<void> => {
    setError(null);
    try {
      await work();
    } catch (failure) {
      setError(readable(failure));
    }
  };
  const rename = (event: FormEvent): void => {
    event.preventDefault();
    void attempt(async () => {
      await props.onRename(title.trim());
      onClose();
    });
  };
  const take = (format: "json" | "markdown"): void =>
    void attempt(async () => {
      const { name: file, blob } = await exportConversation(conversation.id, format);
      save(file, blob);
    });
  if (deleting)
    return (
      <Dialog title="Delete this conversation?" onClose={onClose}>
        <p>“{name}” and its open questions will be gone for good.</p>
        <div className="dialog-actions">
          <button type="button" className="button" onClick={() => setDeleting(false)}>
            Keep it
          </button>
          <button
            type="button"
            className="button button-danger"
            onClick={() => {
              onClose();
              void props.onDelete();
            }}
          >
            Delete
          </button>
        </div>
      </Dialog>
    );
  return (
    <Dialog title="Conversation" onClose={onClose} className="conversation-dialog">
      <form className="rename" onSubmit={rename}>
        <label className="field-label" htmlFor="conversation-title">
          Title
        </label>
        <div className="rename-line">
          <input
            id="conversation-title"
            type="text"
            value={title}
            maxLength={LONGEST_TITLE}
            onChange={(event) => setTitle(event.target.value)}
          />
          <button type="submit" className="button button-primary" disabled={!title.trim()}>
            Rename
          </button>
        </div>
      </form>
      {error !== null && (
        <p className="question-error" role="alert">
          <Icon name="alert" /> {error}
        </p>
      )}
      <div className="form-actions">
        <button type="button" className="button" onClick={() => take("markdown")}>
          <Icon name="download" /> Export as Markdown
        </button>
        <button type="button" className="button" onClick={() => take("json")}>
          <Icon name="download" /> Export as JSON
        </button>
      </div>
      <div className="dialog-actions">
        <button type="button" className="button button-danger-quiet" onClick={() => setDeleting(true)}>
          <Icon name="trash" /> Delete
        </button>
        <button type="button" className="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
