/**
 * The runs of this tab. They are here whichever page is shown, and are found again after a reload: each is a durable
 * call, which goes on in the server without the page, also across a restart. Where the server keeps no calls, a run
 * ends with its connection.
 */
import { useSyncExternalStore } from "react";
import { backOff } from "../api/follow";
import { readable, Unreachable } from "../api/http";
import { type HubSocket, hub, LineLost, type Received, RpcError } from "../api/socket";
import type { Reply } from "../api/types";
import { toAnswer } from "../questions/question";
import { type Asked, newRun, over, type Run, replied, taken } from "./runs";

const PLACE = "midcall.runs";
const MOST_RUNS = 20;

/** What is kept of a run, beside what the server has. */
type Kept = Pick<Run, "id" | "method" | "call" | "started" | "ended" | "status"> & {
  replies: [string, Reply["action"]][];
};

export class RunStore {
  #runs: readonly Run[] = [];
  #next = 1;
  #listeners = new Set<() => void>();
  #socket: HubSocket;
  /** Those for which there is somebody who tries to follow them. */
  #following = new Set<number>();

  constructor(socket: HubSocket) {
    this.#socket = socket;
    for (const kept of readKept()) {
      const { ended, ...rest } = kept;
      const run = newRun(kept.id, kept.method, {
        ...rest,
        status: "running",
        replies: new Map(kept.replies),
      });
      this.#runs = [...this.#runs, run];
      this.#next = Math.max(this.#next, run.id + 1);
      void this.#follow(run.id, { ended, status: kept.status });
    }
  }

  /** The newest first. */
  get all(): readonly Run[] {
    return this.#runs;
  }

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Start a run. Raises why that is refused; then there is none. */
  async start(method: string, params: unknown): Promise<void> {
    const { id } = newRun(this.#next++, method);
    this.#set([newRun(id, method), ...this.#runs].slice(0, MOST_RUNS));
    const listen = (item: Received | null): void => this.#take(id, item);
    try {
      let call: string;
      try {
        call = await this.#socket.subscribe(method, params, listen, { durable: true });
      } catch (error) {
        if (!(error instanceof RpcError && error.data?.code === "not_durable")) throw error;
        this.#change(id, (run) => ({ ...run, isDurable: false }));
        call = await this.#socket.subscribe(method, params, listen);
      }
      this.#change(id, (run) => ({ ...run, call }));
    } catch (error) {
      this.forget(id);
      throw error;
    }
  }

  /** End a run. */
  async stop(id: number): Promise<void> {
    const call = this.#find(id)?.call;
    this.#change(id, (run) => over(run, "cancelled"));
    if (call != null) await this.#socket.unsubscribe(call).catch(() => {});
  }

  /** Answer questions. Raises why one of them is not taken. */
  async reply(id: number, ...given: readonly (readonly [Asked, Reply])[]): Promise<void> {
    const call = this.#find(id)?.call;
    if (call == null) throw new LineLost();
    const results = await Promise.allSettled(
      given.map(([{ item }, reply]) =>
        this.#socket.respond(call, item.request_id, toAnswer(item.request_type, reply)),
      ),
    );
    const isTaken = given.filter((_, n) => results[n]?.status === "fulfilled");
    this.#change(id, (run) =>
      isTaken.reduce((now, [{ item }, reply]) => replied(now, item.request_id, reply.action), run),
    );
    const refused = results.find((one) => one.status === "rejected");
    if (refused !== undefined) throw refused.reason;
  }

  /** Follow a run here that was followed elsewhere. */
  followHere(id: number): void {
    this.#change(id, (run) => ({ ...run, status: "running", ended: null, isLost: true }));
    void this.#follow(id);
  }

  forget(id: number): void {
    this.#set(this.#runs.filter((run) => run.id !== id));
  }

  #take(id: number, item: Received | null): void {
    this.#change(id, (run) => taken(run, item));
    if (item === null && this.#find(id)?.isLost) void this.#follow(id);
  }

  /** Follow a durable run behind what has come of it, as soon as there is a connection. */
  async #follow(id: number, before: Pick<Run, "ended" | "status"> | null = null): Promise<void> {
    if (this.#following.has(id)) return;
    this.#following.add(id);
    try {
      for (let attempt = 0; ; attempt++) {
        const run = this.#find(id);
        if (run?.call == null || run.ended !== null || (await this.#attach(run, before))) return;
        this.#change(id, (now) => ({ ...now, isLost: true }));
        await backOff(attempt, new AbortController().signal).catch(() => {});
      }
    } finally {
      this.#following.delete(id);
    }
  }

  /** Whether it is followed now, or cannot be; else the connection is lost. `before` is how it stood, if it had ended. */
  async #attach({ id, call, elements }: Run, before: Pick<Run, "ended" | "status"> | null): Promise<boolean> {
    let isLost = false;
    try {
      await this.#socket.attach(call ?? "", elements, (item) => {
        isLost = item === null;
        this.#take(id, item);
        if (before?.ended == null || item?.type !== "done") return;
        const { ended, status } = before;
        this.#change(id, (run) => ({ ...run, ended, status: status === "cancelled" ? status : run.status }));
      });
    } catch (error) {
      if (!isFinal(error)) return false;
      // The server keeps what came of a call for a while only.
      if (before?.ended != null) this.forget(id);
      else this.#change(id, (now) => failed(now, error));
      return true;
    }
    if (!isLost) this.#change(id, (now) => ({ ...now, isLost: false }));
    return !isLost;
  }

  #find(id: number): Run | undefined {
    return this.#runs.find((run) => run.id === id);
  }

  #change(id: number, how: (run: Run) => Run): void {
    this.#set(this.#runs.map((run) => (run.id === id ? how(run) : run)));
  }

  #set(runs: readonly Run[]): void {
    this.#runs = runs;
    keep(runs);
    for (const listener of this.#listeners) listener();
  }
}

/** Whether it does not help to try again. */
function isFinal(error: unknown): boolean {
  if (error instanceof LineLost || error instanceof Unreachable) return false;
  if (!(error instanceof RpcError)) return true;
  return error.data?.code !== "not_waiting" || error.data.status === "diverged";
}

function failed(run: Run, error: unknown): Run {
  const isGone = error instanceof RpcError && error.data?.code === "unknown_call";
  const item: Received = {
    type: "error",
    message: isGone ? "The server does not know this run any more." : readable(error),
    code: (error instanceof RpcError ? error.data?.code : undefined) ?? "failed",
    recoverable: false,
    metadata: { provenance: [], plexus_hash: "", timestamp: 0 },
  };
  return over(taken(run, item), "failed");
}

let written = "";

function keep(runs: readonly Run[]): void {
  const kept: Kept[] = runs
    .filter((run) => run.isDurable && run.call !== null)
    .map(({ id, method, call, started, ended, status, replies }) => ({
      id,
      method,
      call,
      started,
      ended,
      status,
      replies: [...replies],
    }));
  const text = JSON.stringify(kept);
  if (text === written) return;
  written = text;
  try {
    sessionStorage.setItem(PLACE, text);
  } catch {
    // no room: they are only not found again after a reload
  }
}

function readKept(): Kept[] {
  try {
    const kept: unknown = JSON.parse(sessionStorage.getItem(PLACE) ?? "[]");
    return Array.isArray(kept) ? kept.filter(isKept) : [];
  } catch {
    return [];
  }
}

const isKept = (one: Partial<Kept> | null): one is Kept =>
  typeof one?.id === "number" &&
  typeof one.method === "string" &&
  typeof one.call === "string" &&
  Array.isArray(one.replies);

export const runStore = new RunStore(hub);

export const useRuns = (): readonly Run[] => useSyncExternalStore(runStore.subscribe, () => runStore.all);
