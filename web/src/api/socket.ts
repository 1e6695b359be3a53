/**
 * The hub's own protocol over the WebSocket: requests, and subscriptions whose items come as they are
 * made. It connects when it is first used, and again when it is used after the line was lost.
 */
import { at } from "../base";
import { get } from "./http";
import { keyring } from "./key";
import type { HubSchema, Item, LogLine } from "./types";

/** The server refused a request. `errors` name the parameters that do not fit. */
export class RpcError extends Error {
  constructor(
    message: string,
    readonly code: number,
    readonly data: { code?: string; status?: string; errors?: { path: string; message: string }[] } | null,
  ) {
    super(message);
  }
}

/** The line is gone. */
export class LineLost extends Error {
  constructor() {
    super("Connection lost.");
  }
}

export type Received = Item | LogLine;

interface Waiting {
  resolve: (result: unknown) => void;
  reject: (error: Error) => void;
}

interface Frame {
  id?: number | null;
  result?: unknown;
  error?: { code: number; message: string; data?: RpcError["data"] };
  method?: string;
  params?: { subscription: string; result: Item; level: string; message: string; data: unknown };
}

export class HubSocket {
  #socket: Promise<WebSocket> | null = null;
  #next = 1;
  #waiting = new Map<number, Waiting>();
  #listeners = new Map<string, (item: Received | null) => void>();
  /** Told of notifications of other protocols. */
  onNotice: (method: string, params: Record<string, unknown>) => void = () => {};
  onLost: () => void = () => {};
  /** Items of a subscription whose id is not known yet: they may come with the same packet as the id. */
  #early = new Map<string, Received[]>();

  schema(): Promise<HubSchema> {
    return this.request<HubSchema>("plexus_schema", {});
  }

  /**
   * Run a method. `listen` gets its items, the last of which is `done`, or nothing if the line is lost. A durable
   * call goes on without the line, and can be followed again with `attach`.
   */
  async subscribe(
    method: string,
    params: unknown,
    listen: (item: Received | null) => void,
    options: { durable?: boolean } = {},
  ): Promise<string> {
    const id = await this.request<string>("plexus_subscribe", { method, params, ...options });
    this.#listeners.set(id, listen);
    const early = this.#early.get(id) ?? [];
    this.#early.delete(id);
    for (const item of early) this.#give(id, item);
    return id;
  }

  /** Follow a durable call, behind so many elements of its result. Items come as for `subscribe`. */
  async attach(call: string, after: number, listen: (item: Received | null) => void): Promise<void> {
    this.#listeners.set(call, listen);
    try {
      await this.request("plexus_attach", { call, after });
    } catch (error) {
      this.#listeners.delete(call);
      throw error;
    }
  }

  async respond(subscription: string, requestId: string, payload: unknown): Promise<void> {
    await this.request("plexus_respond", [subscription, requestId, payload]);
  }

  async unsubscribe(subscription: string): Promise<void> {
    this.#listeners.set(subscription, () => {}); // what is still on its way is of no interest
    await this.request("plexus_unsubscribe", [subscription]);
    this.#listeners.delete(subscription);
  }

  close(): void {
    void this.#socket?.then(
      (socket) => socket.close(),
      () => {},
    );
  }

  /** The result of a request. Raises `RpcError`, `LineLost` or `Unreachable`. */
  async request<T>(method: string, params: unknown): Promise<T> {
    this.#socket ??= this.#connect();
    const socket = await this.#socket;
    const id = this.#next++;
    return await new Promise<T>((resolve, reject) => {
      this.#waiting.set(id, { resolve: resolve as (result: unknown) => void, reject });
      socket.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
    });
  }

  async #connect(): Promise<WebSocket> {
    try {
      return await this.#open();
    } catch {
      // A browser does not tell why a WebSocket was refused. A request of the same kind does, and asks for a key.
      try {
        await get("calls");
        return await this.#open();
      } catch (error) {
        this.#socket = null;
        throw error;
      }
    }
  }

  #open(): Promise<WebSocket> {
    const url = new URL(at("ws"), location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const key = keyring.value;
    const socket = new WebSocket(url, key === null ? ["midcall"] : ["midcall", `bearer.${base64url(key)}`]);
    return new Promise((resolve, reject) => {
      socket.onopen = () => resolve(socket);
      socket.onmessage = (event) => this.#receive(JSON.parse(event.data as string) as Frame);
      socket.onclose = () => {
        reject(new LineLost());
        this.#lost();
      };
    });
  }

  #receive(frame: Frame): void {
    if (frame.params !== undefined) {
      const { subscription, result, level, message, data } = frame.params;
      if (frame.method === "plexus_subscription") this.#give(subscription, result);
      else if (frame.method === "plexus_log") this.#give(subscription, { type: "log", level, message, data });
      else if (frame.id === undefined) this.onNotice(frame.method ?? "", { ...frame.params });
      return;
    }
    const waiting = typeof frame.id === "number" ? this.#waiting.get(frame.id) : undefined;
    if (waiting === undefined) return;
    this.#waiting.delete(frame.id as number);
    if (frame.error === undefined) waiting.resolve(frame.result);
    else waiting.reject(new RpcError(frame.error.message, frame.error.code, frame.error.data ?? null));
  }

  #give(subscription: string, item: Received): void {
    const listener = this.#listeners.get(subscription);
    if (listener === undefined) {
      const early = this.#early.get(subscription) ?? [];
      early.push(item);
      this.#early.set(subscription, early);
      return;
    }
    if (item.type === "done") this.#listeners.delete(subscription);
    listener(item);
  }

  #lost(): void {
    this.#socket = null;
    const listeners = [...this.#listeners.values()];
    const waiting = [...this.#waiting.values()];
    this.#listeners.clear();
    this.#waiting.clear();
    this.#early.clear();
    for (const one of waiting) one.reject(new LineLost());
    for (const listener of listeners) listener(null);
    this.onLost();
  }

  /** Tell the server something that it does not answer. */
  async notify(method: string): Promise<void> {
    this.#socket ??= this.#connect();
    (await this.#socket).send(JSON.stringify({ jsonrpc: "2.0", method }));
  }
}

/** As RFC 4648 has it for addresses, without padding: a subprotocol takes no other characters. */
export function base64url(text: string): string {
  const bytes = String.fromCharCode(...new TextEncoder().encode(text));
  return btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export const hub = new HubSocket();
