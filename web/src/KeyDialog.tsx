/** Asks for the key of a server that wants one. */
import { type ReactNode, useState, useSyncExternalStore } from "react";
import { keyring } from "./api/key";
import { Dialog } from "./ui/Dialog";

export function KeyDialog(): ReactNode {
  const question = useSyncExternalStore(keyring.subscribe, () => keyring.question);
  const [key, setKey] = useState("");
  if (question === null) return null;
  return (
    <Dialog title="A key is needed">
      <p>
        {/[.!?]$/.test(question) ? question : `${question}.`} The key is kept in this tab only, until it is
        closed.
      </p>
      <form
        className="form"
        onSubmit={(event) => {
          event.preventDefault();
          if (!key.trim()) return;
          keyring.give(key);
          setKey("");
        }}
      >
        <div className="field">
          <label className="field-label" htmlFor="key">
            Key
          </label>
          <input
            id="key"
            type="password"
            value={key}
            autoComplete="off"
            onChange={(event) => setKey(event.target.value)}
          />
        </div>
        <div className="dialog-actions">
          <button type="submit" className="button button-primary">
            Go on
          </button>
        </div>
      </form>
    </Dialog>
  );
}
