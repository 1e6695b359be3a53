import type { ReactNode } from "react";
import type { ChatInfo } from "../api/types";
import { Link } from "../router";
import { Icon, Sign } from "../ui/Icon";

export function Welcome(props: {
  info: ChatInfo | null;
  onSuggestion: (text: string) => void;
  disabled: boolean;
}): ReactNode {
  const { info } = props;
  return (
    <div className="chat-scroll welcome">
      <div className="welcome-inner">
        <Sign />
        <h1>What can I do for you?</h1>
        <p className="welcome-about">
          {info?.hub.description || "Tools here can stop in the middle and ask you."}
        </p>
        {info !== null && info.suggestions.length > 0 && (
          <ul className="suggestions" aria-label="Suggestions">
            {info.suggestions.map((text) => (
              <li key={text}>
                <button type="button" disabled={props.disabled} onClick={() => props.onSuggestion(text)}>
                  <span>{text}</span>
                  <Icon name="send" className="suggestion-icon" />
                </button>
              </li>
            ))}
          </ul>
        )}
      </div>
    </div>
  );
}

/** The address is of no conversation: it was deleted, or it is somebody else's. */
export function Missing(): ReactNode {
  return (
    <div className="chat-scroll welcome" role="alert">
      <div className="welcome-inner">
        <Sign />
        <h1>There is no such conversation</h1>
        <p className="welcome-about">It may have been deleted, or belong to somebody else.</p>
        <Link to={{ page: "chat", conversation: null }} className="button">
          <Icon name="plus" /> New conversation
        </Link>
      </div>
    </div>
  );
}

export function NoChat(): ReactNode {
  return (
    <div className="chat-scroll welcome">
      <div className="welcome-inner">
        <Sign />
        <h1>There is no chat here</h1>
        <p className="welcome-about">
          This server has tools, but no model that talks. Start it with <code>--model</code> to have one.
        </p>
        <Link to={{ page: "tools", method: null }} className="button button-primary">
          <Icon name="tool" /> Look at the tools
        </Link>
      </div>
    </div>
  );
}
