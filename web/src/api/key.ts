/**
 * The key for a server that asks who calls. It is kept for this tab only, and asked for once, however
 * many requests were refused meanwhile.
 */
const PLACE = "midcall.key";

type Listener = () => void;

class Keyring {
  #asking: { message: string; promise: Promise<void>; given: () => void } | null = null;
  #listeners = new Set<Listener>();

  get value(): string | null {
    return sessionStorage.getItem(PLACE);
  }

  /** What the person is told while the key is asked for; nothing if it is not. */
  get question(): string | null {
    return this.#asking?.message ?? null;
  }

  /** Ask the person for a key, and wait for it. `used` is the one that was refused. */
  async ask(message: string, used: string | null): Promise<void> {
    if (this.value !== used && this.#asking === null) return; // another request has brought a new one
    if (this.#asking === null) {
      const { promise, resolve } = withResolvers();
      this.#asking = { message, promise, given: resolve };
      this.#changed();
    }
    await this.#asking.promise;
  }

  give(key: string): void {
    sessionStorage.setItem(PLACE, key.trim());
    const asking = this.#asking;
    this.#asking = null;
    this.#changed();
    asking?.given();
  }

  /** The person is somebody else now: the next request asks for a key. */
  forget(): void {
    sessionStorage.removeItem(PLACE);
    this.#changed();
  }

  subscribe = (listener: Listener): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  #changed(): void {
    for (const listener of this.#listeners) listener();
  }
}

function withResolvers(): { promise: Promise<void>; resolve: () => void } {
  let resolve = (): void => {};
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

export const keyring = new Keyring();
