/**
 * What the page asks for as an MCP client: resources, prompts and completions. It is spoken over a WebSocket of its
 * own, in the revision in which a subscription lasts as long as its connection. A lost one is opened again.
 */
import { backOff } from "./follow";
import { HubSocket } from "./socket";

export interface Resource {
  uri: string;
  name: string;
  title?: string;
  description?: string;
  mimeType?: string;
  size?: number;
}

export interface ResourceTemplate extends Omit<Resource, "uri" | "size"> {
  uriTemplate: string;
}

export interface Prompt {
  name: string;
  title?: string;
  description?: string;
  arguments?: { name: string; title?: string; description?: string; required?: boolean }[];
}

export interface PromptMessage {
  role: string;
  content: unknown;
}

export type Reference = { type: "ref/resource"; uri: string } | { type: "ref/prompt"; name: string };

interface Lists {
  resources: Resource[];
  resourceTemplates: ResourceTemplate[];
  prompts: Prompt[];
}

const PATHS: Record<keyof Lists, string> = {
  resources: "resources/list",
  resourceTemplates: "resources/templates/list",
  prompts: "prompts/list",
};

const REVISION = "2025-11-25";

export class McpClient {
  #socket = new HubSocket();
  #ready: Promise<void> | null = null;
  #watched = new Map<string, Set<() => void>>();
  #listeners = new Set<() => void>();

  constructor() {
    this.#socket.onNotice = (method, params) => {
      if (method === "notifications/resources/updated") this.#updated(String(params.uri));
      if (/^notifications\/(resources|prompts)\/list_changed$/.test(method))
        for (const one of this.#listeners) one();
    };
    this.#socket.onLost = () => {
      this.#ready = null;
      if (this.#watched.size > 0) void this.#watchAgain();
      for (const one of this.#listeners) one();
    };
  }

  /** One page of a list, and where the next one begins. */
  async list<K extends keyof Lists>(
    what: K,
    cursor: string | null,
  ): Promise<{ items: Lists[K]; next: string | null }> {
    const found = await this.#request<Partial<Lists> & { nextCursor?: string }>(
      PATHS[what],
      cursor === null ? {} : { cursor },
    );
    return { items: (found[what] ?? []) as Lists[K], next: found.nextCursor ?? null };
  }

  async read(uri: string): Promise<Record<string, unknown>[]> {
    return (await this.#request<{ contents: Record<string, unknown>[] }>("resources/read", { uri })).contents;
  }

  async prompt(name: string, given: Record<string, string>): Promise<PromptMessage[]> {
    const params = { name, arguments: given };
    return (await this.#request<{ messages: PromptMessage[] }>("prompts/get", params)).messages;
  }

  /** What an argument may be, that begins so; `given` are the others. */
  async complete(
    ref: Reference,
    name: string,
    value: string,
    given: Record<string, string>,
  ): Promise<string[]> {
    const params = { ref, argument: { name, value }, context: { arguments: given } };
    const found = await this.#request<{ completion: { values: string[] } }>("completion/complete", params);
    return found.completion.values;
  }

  /** Be told when a resource has changed, and when it may have, as the connection was lost. Gives the way to end that. */
  async watch(uri: string, changed: () => void): Promise<() => void> {
    const known = this.#watched.get(uri);
    const watching = known ?? new Set();
    if (known === undefined) {
      await this.#request("resources/subscribe", { uri });
      this.#watched.set(uri, watching);
    }
    watching.add(changed);
    return () => {
      watching.delete(changed);
      if (watching.size > 0 || !this.#watched.delete(uri)) return;
      void this.#request("resources/unsubscribe", { uri }).catch(() => {});
    };
  }

  /** Be told when there are other resources or prompts than before, and when there may be, as the connection was lost. */
  onChanged = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  #updated(uri: string): void {
    for (const changed of this.#watched.get(uri) ?? []) changed();
  }

  async #watchAgain(): Promise<void> {
    for (let attempt = 0; this.#watched.size > 0; attempt++) {
      await backOff(attempt, new AbortController().signal).catch(() => {});
      try {
        for (const uri of this.#watched.keys()) await this.#request("resources/subscribe", { uri });
        for (const uri of this.#watched.keys()) this.#updated(uri);
        return;
      } catch {
        // not yet
      }
    }
  }

  async #request<T>(method: string, params: Record<string, unknown>): Promise<T> {
    this.#ready ??= this.#initialize();
    await this.#ready;
    return await this.#socket.request<T>(method, params);
  }

  async #initialize(): Promise<void> {
    try {
      await this.#socket.request("initialize", {
        protocolVersion: REVISION,
        capabilities: {},
        clientInfo: { name: "midcall-web", version: "1" },
      });
      await this.#socket.notify("notifications/initialized");
    } catch (error) {
      this.#ready = null;
      throw error;
    }
  }
}

export const mcp = new McpClient();
