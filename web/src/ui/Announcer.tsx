/**
 * What a screen reader says without being asked. Text that streams in is announced by whole sentences, as
 * a region that changes with each word would be read as noise.
 */
import { type ReactNode, useSyncExternalStore } from "react";

let said = "";
const listeners = new Set<() => void>();

/** Letters that are said; nobody listens to more at once. */
const MOST = 1000;

export function announce(text: string): void {
  const trimmed = text.slice(0, MOST).trim();
  if (!trimmed) return;
  said = said === trimmed ? `${trimmed}\u00a0` : trimmed; // the same words again are a change, too
  for (const listener of listeners) listener();
}

const subscribe = (listener: () => void): (() => void) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};

export function Announcer(): ReactNode {
  const text = useSyncExternalStore(subscribe, () => said);
  return (
    <div className="sr-only" role="status" aria-live="polite" data-testid="announcer">
      {text}
    </div>
  );
}

const SENTENCE = /[.!?:]\s|\n/g;

/** Gathers pieces of text and announces them sentence by sentence. */
export class Speech {
  #rest = "";

  add(piece: string): void {
    this.#rest += piece;
    const end = [...this.#rest.matchAll(SENTENCE)].at(-1);
    if (end === undefined) return;
    const at = end.index + end[0].length;
    announce(plain(this.#rest.slice(0, at)));
    this.#rest = this.#rest.slice(at);
  }

  end(): void {
    announce(plain(this.#rest));
    this.#rest = "";
  }
}

const plain = (markdown: string): string =>
  markdown
    .slice(0, MOST)
    .replace(/[*_`#>|]+/g, " ")
    .replace(/\[([^\]]*)\]\([^)]*\)/g, "$1");
