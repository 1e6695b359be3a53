/**
 * One run, followed to its end whatever happens to the line: a durable call, whose elements are numbered, so that
 * whoever comes back gets what was missed and the open questions again. A run that another program has started, as
 * over MCP or in the chat, is asked for by its caller: here it can only be looked at.
 */
import { showCall } from "../api/calls";
import { backOff } from "../api/follow";
import { Refused, readable, Unreachable } from "../api/http";
import { HubSocket, LineLost, type Received, RpcError } from "../api/socket";
import type { CallDetails, Item, Reply } from "../api/types";
import { isObject } from "../forms/schema";
import { toAnswer } from "../questions/question";
import { inJournal, type Machine, START, type TrailEntry } from "./machine";

export type Question = Extract<Item, { type: "request" }>;

export interface RunState {
  trail: readonly TrailEntry[];
  questions: readonly Question[];
  /** What it does at the moment, in its own words. */
  progress: string;
  status: "loading" | "running" | "ended" | "failed" | "elsewhere";
  /** Why it failed, or is not to be had here. */
  error: string | null;
  /** Whether the line to the server is lost for now. */
  isLost: boolean;
  /** Whether it is asked for by another program, and only looked at here. */
  isForeign: boolean;
}

const NOTHING: RunState = {
  trail: [],
  questions: [],
  progress: "",
  status: "loading",
  error: null,
  isLost: false,
  isForeign: false,
};

/** Milliseconds in which entries are gathered before they are shown. */
const PAUSE = 60;
const POLL = 1500;

export class Run {
  state: RunState = NOTHING;
  #listeners = new Set<() => void>();
  #fresh: TrailEntry[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;
  #line: HubSocket | null = null;
  #leaving = new AbortController();

  constructor(
    readonly id: string,
    readonly machine: Machine,
  ) {}

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Follow it until the end, or until `leave`. */
  async follow(): Promise<void> {
    this.#leaving = new AbortController();
    const { signal } = this.#leaving;
    if (this.state.status === "elsewhere") this.#change({ status: "running", error: null });
    for (let attempt = 0; !signal.aborted; attempt++) {
      try {
        const before = this.state.trail.length;
        if (await this.#attach(signal)) return;
        if (this.state.trail.length > before) attempt = 0;
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof RpcError)) {
          if (!(error instanceof LineLost || error instanceof Unreachable))
            return this.#fail(readable(error));
        } else if (error.data?.code === "unknown_call") {
          return await this.#watch(signal);
        } else if (error.data?.code !== "not_waiting" || error.data.status === "diverged") {
          return this.#fail(error.message);
        }
      }
      if (signal.aborted) return;
      this.#change({ isLost: true });
      await backOff(attempt, signal).catch(() => {});
    }
  }

  /** Let go of it; it goes on by itself. */
  leave(): void {
    this.#leaving.abort();
    clearTimeout(this.#timer);
    this.#line?.close();
    this.#line = null;
  }

  /** Answer a question. Raises why that was not taken. */
  async reply(question: Question, given: Reply): Promise<void> {
    if (this.#line === null) throw new LineLost();
    await this.#line.respond(this.id, question.request_id, toAnswer(question.request_type, given));
    this.#close(question.request_id);
  }

  /** Whether it has ended; otherwise the line was lost. */
  async #attach(signal: AbortSignal): Promise<boolean> {
    const line = new HubSocket();
    this.#line = line;
    let over: (ended: boolean) => void = () => {};
    const ended = new Promise<boolean>((resolve) => {
      over = resolve;
    });
    signal.addEventListener("abort", () => over(true), { once: true });
    this.#change({ questions: [] }); // they are asked again
    try {
      await line.attach(this.id, this.state.trail.length, (item) => {
        if (signal.aborted) return;
        if (item === null) over(false);
        else if (this.#take(item)) over(true);
      });
      if (this.state.status === "loading") this.#change({ status: "running" });
      this.#change({ isLost: false });
      return await ended;
    } finally {
      this.#flush();
      line.close();
    }
  }

  /** Take an item; whether it was the last one. */
  #take(item: Received): boolean {
    switch (item.type) {
      case "data":
        this.#fresh.push(item.content as TrailEntry);
        this.#timer ??= setTimeout(() => this.#flush(), PAUSE);
        return false;
      case "progress":
        this.#change({ progress: item.message });
        return false;
      case "request":
        this.#flush();
        this.#close(item.request_id);
        this.#change({ questions: [...this.state.questions, item] });
        return false;
      case "request_cancelled":
        this.#close(item.request_id);
        return false;
      case "error":
        this.#flush();
        this.#change({
          status: item.code === "attached_elsewhere" ? "elsewhere" : "failed",
          error: item.message,
        });
        return false;
      case "done":
        this.#flush();
        this.#change({
          questions: [],
          progress: "",
          ...(this.state.error === null ? { status: "ended" as const } : {}),
        });
        return true;
      default:
        return false;
    }
  }

  /** Look at a run of another program, again and again until it has ended. */
  async #watch(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        const call = await showCall(this.id);
        if (signal.aborted) return;
        this.#change({ ...this.#seen(call), isLost: false, isForeign: true });
        if (this.state.status !== "running") return;
      } catch (error) {
        if (error instanceof Refused)
          return this.#fail(error.status === 404 ? "There is no such run (any more)." : error.message);
        this.#change({ isLost: true });
      }
      await new Promise((resolve) => setTimeout(resolve, POLL));
    }
  }

  #seen({ status, entries, outcome, arguments: given }: CallDetails): Partial<RunState> {
    const way = this.machine.transitions.find((one) => one.id[0] === START);
    const event = {
      ...(isObject(given) ? given : {}),
      id: isObject(given) && given.id !== undefined ? given.id : way?.id,
    };
    const to = Array.isArray(event.id) ? String(event.id[1]) : null;
    const trail = [{ from: START, to, event }, ...inJournal(entries ?? []).map(({ entry }) => entry)];
    const isActive = status === "running" || status === "waiting";
    const error =
      outcome?.error?.message ?? (status === "completed" || isActive ? null : `The run is ${status}.`);
    return { trail, error, status: isActive ? "running" : error === null ? "ended" : "failed" };
  }

  #close(requestId: string): void {
    const left = this.state.questions.filter((one) => one.request_id !== requestId);
    if (left.length < this.state.questions.length) this.#change({ questions: left });
  }

  #fail(error: string): void {
    this.#change({ status: "failed", error, questions: [], isLost: false });
  }

  #flush(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const fresh = this.#fresh;
    this.#fresh = [];
    if (fresh.length > 0) this.#change({ trail: [...this.state.trail, ...fresh] });
  }

  #change(what: Partial<RunState>): void {
    this.state = { ...this.state, ...what };
    for (const listener of this.#listeners) listener();
  }
}
