/**
 * The chat as a store: the list of conversations, the one that is open, and the run that is followed.
 *
 * The server has the truth. Whenever it is not certain how things stand (the line was lost in the middle of a
 * request, another tab has answered, the run is gone), the conversation is read again, and goes on from there.
 */
import * as api from "../api/chat";
import { backOff, follow, RunGone } from "../api/follow";
import { Refused, readable, Unreachable } from "../api/http";
import type {
  ChatEvent,
  ChatInfo,
  Conversation,
  ConversationSummary,
  Elicit,
  ElicitResponse,
  FileInfo,
  ModelInfo,
  Reply,
} from "../api/types";
import { Speech } from "../ui/Announcer";
import {
  apply,
  countOf,
  type Entry,
  fromMessages,
  questionsOf,
  readAgain,
  type ToolCall,
  type Transcript,
  type UserEntry,
  withAnswer,
  withoutNotices,
} from "./transcript";

export interface ChatState {
  info: ChatInfo | null;
  /** The server has tools only. */
  noChat: boolean;
  /** There is no such conversation, or not any more. */
  isMissing: boolean;
  /** Who answers. */
  model: ModelInfo | null;
  conversations: readonly ConversationSummary[];
  /** Whether the conversations were read. */
  isListed: boolean;
  conversationId: string | null;
  transcript: Transcript;
  phase: "loading" | "idle" | "running";
  /** The line to the server is lost, and looked for. */
  offline: boolean;
  /** What went wrong with all of it, and whether trying again may help. */
  error: { text: string; retry: (() => void) | null } | null;
  /** Answers that are on their way or wait for the run to end, by question. */
  sending: ReadonlyMap<string, ElicitResponse>;
  /** Why an answer was not taken, by question. */
  refusals: ReadonlyMap<string, string>;
}

const EMPTY: ChatState = {
  info: null,
  noChat: false,
  isMissing: false,
  model: null,
  conversations: [],
  isListed: false,
  conversationId: null,
  transcript: [],
  phase: "idle",
  offline: false,
  error: null,
  sending: new Map(),
  refusals: new Map(),
};

const POLL = 4000;

/** How a turn ends that another server can go on with. */
const CUT_OFF = new Set(["closing", "run_lost"]);
const MOST_RESUMED = 3;

const TOO_LATE: Entry = {
  kind: "notice",
  tone: "info",
  text: "Your answer came too late: that question is no longer open.",
  retry: false,
};

/** What tabs tell each other: something has happened in this conversation, or to the list. */
interface Shared {
  conversationId: string | null;
}

/** A file that is sent with a message. */
export interface NewFile {
  info: FileInfo;
  /** In base64. */
  data: string;
}

interface Run {
  sessionId: string;
  lsn: number;
}

/** A request that begins a turn, and what follows from how it goes. */
interface Turn {
  body: api.TurnBody;
  arrived?: () => void;
  /** Whether the conversation, as it was read again, shows that the request has arrived. */
  isThere: () => boolean;
  /** It did not arrive. */
  lost: (reason: string) => void;
}

export class ChatStore {
  #state = EMPTY;
  #listeners = new Set<() => void>();
  #open = new AbortController();
  #speech = new Speech();
  #tabs = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("midcall");
  /** When the open conversation last changed, as far as this page knows. */
  #seen: unknown = null;
  /** How many turns were begun or joined here: what was read before the last of them is old. */
  #turns = 0;
  #resumed = 0;
  /** Calls for which an answer came too late in this run. */
  #stale = new Set<string>();
  /** Questions whose time was up, and when they are looked at again should the server still ask them. */
  #late = new Map<string, number>();
  #frame: number | null = null;
  /** Whom the person has chosen to answer in the open conversation. */
  #chosen: string | null = null;
  /** Who answers there, as the server has it. */
  #kept: string | null = null;

  /** Called with the id of a conversation that a message has begun. */
  onBegun: (id: string) => void = () => {};

  get state(): ChatState {
    return this.#state;
  }

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Read what does not depend on a conversation, and keep the list fresh; gives what ends that. */
  start(): () => void {
    void this.#loadInfo();
    void this.refreshList();
    const look = (): void => {
      if (!document.hidden && !this.#state.noChat) void this.refreshList();
    };
    const timer = setInterval(look, POLL);
    const clock = setInterval(() => void this.#timeIsUp(), 1000);
    document.addEventListener("visibilitychange", look);
    const fromTab = ({ data }: MessageEvent<Shared>): void => {
      void this.refreshList();
      if (data.conversationId !== null && data.conversationId === this.#state.conversationId)
        this.#readAgain();
    };
    this.#tabs?.addEventListener("message", fromTab);
    return () => {
      clearInterval(timer);
      clearInterval(clock);
      document.removeEventListener("visibilitychange", look);
      this.#tabs?.removeEventListener("message", fromTab);
    };
  }

  // --- conversations -----------------------------------------------------------------------------

  /** Show a conversation, or the beginning of a new one. */
  open(id: string | null): void {
    if (id !== null && id === this.#state.conversationId) return;
    this.#open.abort(); // what is followed is let go; the run goes on in the server
    this.#open = new AbortController();
    this.#resumed = 0;
    this.#chosen = null;
    this.#kept = null;
    const { info, noChat, conversations, isListed } = this.#state;
    const model = info?.model ?? null;
    const phase = id === null ? "idle" : "loading";
    const kept = { info, noChat, model, conversations, isListed };
    this.#set({ ...EMPTY, ...kept, conversationId: id, phase });
    if (id !== null) void this.#load(id, this.#open.signal);
  }

  async refreshList(): Promise<void> {
    let conversations: ConversationSummary[];
    try {
      conversations = await api.listConversations();
    } catch {
      return; // the list is not worth a message: what matters says so itself
    }
    this.#set({ conversations, isListed: true });
    const mine = conversations.find((one) => one.id === this.#state.conversationId);
    if (mine === undefined || this.#state.phase !== "idle") return;
    const changed = this.#seen !== null && this.#seen !== mine.updated;
    this.#seen = mine.updated;
    // What waits may be answered elsewhere, by which its list entry need not change.
    if (changed || mine.running || mine.waiting) this.#readAgain();
  }

  /** Choose who answers from the next message on. */
  choose(name: string): void {
    const model = this.#state.info?.models?.find((one) => one.name === name);
    if (model === undefined) return;
    this.#chosen = name;
    this.#set({ model });
  }

  /** Give a conversation another title. Raises why that cannot be. */
  async rename(id: string, title: string): Promise<void> {
    await api.renameConversation(id, title);
    const conversations = this.#state.conversations.map((one) => (one.id === id ? { ...one, title } : one));
    this.#set({ conversations });
    this.#tell(null);
  }

  async remove(id: string): Promise<void> {
    try {
      await api.deleteConversation(id);
    } catch (error) {
      if (!(error instanceof Refused && error.status === 404)) {
        this.#fail(error, () => void this.remove(id));
        return;
      }
    }
    this.#tell(null);
    this.#set({ conversations: this.#state.conversations.filter((one) => one.id !== id) });
  }

  // --- the person acts ---------------------------------------------------------------------------

  /** Say something; `aside`, the questions that wait are still asked. */
  async send(text: string, options: { aside?: boolean; attachments?: NewFile[] } = {}): Promise<void> {
    const { conversationId, phase } = this.#state;
    if (phase !== "idle") return;
    const { aside = false, attachments = [] } = options;
    const said: UserEntry = {
      kind: "user",
      text,
      time: Date.now() / 1000,
      ...(aside ? { aside } : {}),
      ...(attachments.length ? { files: attachments.map(({ info, data }) => ({ ...info, data })) } : {}),
    };
    const transcript = [...withoutNotices(this.#state.transcript), said];
    const count = countOf(transcript);
    this.#resumed = 0;
    this.#set({ transcript, error: null, phase: "running" });
    await this.#turn({
      body: {
        message: text,
        ...(conversationId === null ? {} : { conversationId }),
        ...(aside ? { aside } : {}),
        ...this.#model(),
        ...(attachments.length
          ? { attachments: attachments.map(({ info, data }) => ({ name: info.name, data })) }
          : {}),
      },
      isThere: () => countOf(this.#state.transcript) >= count,
      lost: (reason) => {
        const left = this.#state.transcript.filter((entry) => entry !== said);
        this.#set({ transcript: [...left, { ...said, unsent: reason }] });
      },
    });
    // What was attached has an address only when the server has it.
    if (attachments.length && this.#state.phase === "idle") this.#readAgain();
  }

  /** Say something else in the place of a message, the `n`th entry; what came after it is forgotten. */
  async edit(n: number, text: string): Promise<void> {
    const { conversationId, phase, transcript } = this.#state;
    const entry = transcript[n];
    const { signal } = this.#open;
    if (conversationId === null || phase !== "idle" || entry?.kind !== "user") return;
    const number = countOf(transcript.slice(0, n));
    this.#set({ error: null, phase: "running" });
    let found: Conversation;
    try {
      found = await api.fetchConversation(conversationId, signal);
    } catch (error) {
      this.#set({ phase: "idle" });
      if (!signal.aborted) this.#fail(error, null);
      return;
    }
    const places = found.messages.flatMap(({ role }, place) => (role === "user" ? [place] : []));
    const place = places[number];
    if (place === undefined || found.messages[place]?.content !== entry.text) {
      this.#set({ phase: "idle" });
      this.#fail(new Error("The conversation was changed meanwhile."), null);
      this.#readAgain();
      return;
    }
    const said: Entry = { ...entry, text, time: Date.now() / 1000 };
    this.#set({ transcript: [...transcript.slice(0, n), said] });
    await this.#turn({
      body: {
        conversationId,
        message: text,
        edit: { message: place, of: found.messages.length },
        ...this.#model(),
      },
      isThere: () => this.#state.transcript.some((one) => one.kind === "user" && one.text === text),
      lost: (reason) => {
        this.#set({ transcript });
        this.#fail(new Error(reason), null);
      },
    });
  }

  /** Have the last message answered once more. */
  async regenerate(): Promise<void> {
    const { transcript } = this.#state;
    const n = transcript.findLastIndex((entry) => entry.kind === "user" && entry.unsent === undefined);
    const entry = transcript[n];
    if (entry?.kind === "user") await this.edit(n, entry.text);
  }

  /** Make a tool call again that has ended, with the same arguments. */
  callAgain = async (call: ToolCall): Promise<void> => {
    const { conversationId, phase } = this.#state;
    if (conversationId === null || phase !== "idle") return;
    const before = this.#state.transcript;
    const name = call.name.replaceAll("__", ".");
    const said: Entry = {
      kind: "user",
      text: `Call ${name} again with the same arguments.`,
      time: Date.now() / 1000,
    };
    const count = countOf(before) + 1;
    this.#set({ transcript: [...withoutNotices(before), said], error: null, phase: "running" });
    await this.#turn({
      body: { conversationId, retry: call.id, ...this.#model() },
      isThere: () => countOf(this.#state.transcript) >= count,
      lost: (reason) => {
        this.#set({ transcript: before });
        this.#fail(new Error(reason), null);
      },
    });
  };

  /** Send a message again that did not arrive. */
  async resend(unsent: UserEntry): Promise<void> {
    if (this.#state.phase !== "idle") return;
    const { text, aside = false, files = [] } = unsent;
    this.#set({ transcript: this.#state.transcript.filter((entry) => entry !== unsent) });
    const attachments = files.map(({ data = "", ...info }) => ({ info, data }));
    await this.send(text, { aside, attachments });
  }

  /** Go on with a turn that failed or was cut off, as soon as the server answers. */
  async retry(): Promise<void> {
    const { conversationId, phase } = this.#state;
    const { signal } = this.#open;
    if (conversationId === null || phase !== "idle") return;
    this.#set({ error: null, phase: "running" });
    // What it had said of its answer is not kept: it begins anew, unless somebody else has gone on with it.
    const run = await this.#load(conversationId, signal, { join: false });
    if (signal.aborted) return;
    this.#set({ transcript: withoutNotices(this.#state.transcript), phase: "running" });
    if (run !== null) {
      await this.#join(run, signal);
      return;
    }
    await this.#turn({
      body: { conversationId, resume: true },
      isThere: () => false,
      lost: (text) => {
        const notice: Entry = { kind: "notice", tone: "error", text, retry: true };
        this.#set({ transcript: [...withoutNotices(this.#state.transcript), notice] });
      },
    });
  }

  /** Answer a question, or refuse to; while a turn runs the answer waits for its end. */
  answer = async (...given: (readonly [Elicit, Reply])[]): Promise<void> => {
    const sending = new Map(this.#state.sending);
    for (const [{ sessionId, callId, elicitId }, result] of given)
      sending.set(elicitId, { sessionId, callId, elicitId, result });
    const ids = new Set(given.map(([{ elicitId }]) => elicitId));
    this.#set({ sending, refusals: without(this.#state.refusals, ids) });
    if (this.#state.phase === "idle") await this.#sendAnswers();
  };

  async stop(): Promise<void> {
    const { conversationId } = this.#state;
    if (conversationId === null) return;
    try {
      await api.stopTurn(conversationId);
    } catch (error) {
      this.#fail(error, () => void this.stop());
    }
  }

  dismissError(): void {
    this.#set({ error: null });
  }

  // --- turns -------------------------------------------------------------------------------------

  async #sendAnswers(): Promise<void> {
    const open = new Map(questionsOf(this.#state.transcript).map((elicit) => [elicit.elicitId, elicit]));
    const responses = [...this.#state.sending.values()].filter((one) => open.has(one.elicitId));
    const { conversationId, sending, transcript } = this.#state;
    if (responses.length === 0 || conversationId === null) {
      const isLate = sending.size > 0 && conversationId !== null;
      this.#set({ sending: new Map(), transcript: isLate ? [...transcript, TOO_LATE] : transcript });
      return;
    }
    this.#resumed = 0;
    this.#set({ transcript: withoutNotices(transcript), phase: "running", error: null });
    const ids = new Set(responses.map((one) => one.elicitId));
    const answer = (transcript: Transcript, { elicitId, result }: ElicitResponse): Transcript => {
      const elicit = open.get(elicitId);
      return elicit === undefined ? transcript : withAnswer(transcript, elicit, result);
    };
    const sent = (): void => this.#set({ sending: without(this.#state.sending, ids) });
    await this.#turn({
      body: { conversationId, pluginElicitResponses: responses },
      arrived: () => {
        sent();
        this.#set({ transcript: responses.reduce(answer, this.#state.transcript) });
      },
      isThere: () => questionsOf(this.#state.transcript).every((one) => !ids.has(one.elicitId)),
      lost: (reason) => {
        sent();
        const refusals = new Map(this.#state.refusals);
        for (const id of ids) refusals.set(id, reason);
        this.#set({ refusals });
      },
    });
  }

  /** Nobody has answered in time: the tool is told so, and the conversation goes on. */
  async #timeIsUp(): Promise<void> {
    const { conversationId, transcript, phase } = this.#state;
    const now = Date.now();
    const late = questionsOf(transcript).filter(
      ({ elicitId, until }) => until && Date.parse(until) <= now && (this.#late.get(elicitId) ?? 0) <= now,
    );
    if (phase !== "idle" || conversationId === null || late.length === 0) return;
    // The clock of the server may be another one: it is asked again ever more seldom.
    for (const { elicitId, until } of late)
      this.#late.set(elicitId, 2 * now - Date.parse(until ?? "") + 1000);
    this.#set({ transcript: withoutNotices(transcript), phase: "running" });
    await this.#turn({ body: { conversationId, resume: true }, isThere: () => false, lost: () => {} });
    if (this.#state.phase === "idle" && this.#state.sending.size > 0) await this.#sendAnswers();
  }

  /** Begin a turn and follow it to its end. */
  async #turn(turn: Turn): Promise<void> {
    const { signal } = this.#open;
    this.#turns += 1;
    let response: Response;
    try {
      response = await api.beginTurn(turn.body);
    } catch (error) {
      if (!signal.aborted) await this.#afterFailure(error, turn, signal);
      return;
    }
    if (signal.aborted) {
      void response.body?.cancel();
      return;
    }
    turn.arrived?.();
    const sessionId = response.headers.get("X-Session-Id") ?? "";
    await this.#follow({ first: response, sessionId, lastLsn: 0 }, signal);
  }

  /** A turn could not be begun, or it is not certain whether it was: then the conversation tells. */
  async #afterFailure(error: unknown, turn: Turn, signal: AbortSignal): Promise<void> {
    const { conversationId } = this.#state;
    const isBusy = error instanceof Refused && error.status === 409;
    let run: Run | null = null;
    if (conversationId !== null && (isBusy || error instanceof Unreachable)) {
      run = await this.#load(conversationId, signal, { join: false });
      if (signal.aborted) return;
    }
    this.#set({ phase: "idle" });
    if (!(error instanceof Unreachable && conversationId !== null && turn.isThere()))
      turn.lost(readable(error));
    else turn.arrived?.();
    if (run !== null) await this.#join(run, signal);
  }

  /** Follow a run that was begun elsewhere, or before this page was loaded. */
  async #join(run: Run, signal: AbortSignal): Promise<void> {
    this.#turns += 1;
    this.#set({ phase: "running" });
    await this.#follow({ sessionId: run.sessionId, lastLsn: run.lsn }, signal);
    // What began it may have been written down after the conversation was read.
    if (!signal.aborted) this.#readAgain();
  }

  async #follow(
    run: { first?: Response; sessionId: string; lastLsn: number },
    signal: AbortSignal,
  ): Promise<void> {
    const onLine = (isUp: boolean): void => this.#set({ offline: !isUp });
    let last: ChatEvent | null = null;
    try {
      for await (const event of follow({ ...run, reopen: api.joinRun, signal, onLine })) {
        this.#take(event);
        last = event;
      }
    } catch (error) {
      if (signal.aborted) return;
      const { conversationId } = this.#state;
      if (error instanceof RunGone && conversationId !== null) {
        await this.#load(conversationId, signal);
        return;
      }
      this.#set({ offline: false });
      this.#fail(error, null);
    }
    if (signal.aborted) return;
    this.#speech.end();
    this.#seen = null;
    this.#set({ phase: "idle" });
    this.#tell(this.#state.conversationId);
    if (last?.type === "error" && CUT_OFF.has(last.code)) await this.#resume();
    else if (this.#state.sending.size > 0) await this.#sendAnswers();
    else await this.refreshList();
  }

  #take(event: ChatEvent): void {
    if (event.type === "session_info") {
      const isNew = this.#state.conversationId === null;
      const known = this.#state.info?.models?.find(({ name }) => name === event.model.name);
      this.#set({ conversationId: event.conversationId, model: known ?? event.model });
      if (isNew) this.onBegun(event.conversationId);
      this.#tell(event.conversationId);
      void this.refreshList();
    }
    if (event.type === "text") this.#speech.add(event.content);
    else if (event.type !== "thinking") this.#speech.end();
    this.#set({ transcript: apply(this.#state.transcript, event) });
    if (event.type !== "conversation_state" && event.type !== "plugin_session_error") return;
    this.#noteStale(event);
  }

  /** An answer came too late: the question that is open now says so. */
  #noteStale(event: Extract<ChatEvent, { type: "conversation_state" | "plugin_session_error" }>): void {
    if (event.type === "plugin_session_error") {
      if (event.error === "ELICIT_MISMATCH") this.#stale.add(event.callId);
      return;
    }
    const refusals = new Map(this.#state.refusals);
    for (const { callId, elicitId } of event.pending) {
      if (this.#stale.has(callId))
        refusals.set(elicitId, "The question before this one was answered elsewhere.");
    }
    this.#stale.clear();
    this.#set({ refusals });
  }

  // --- reading -----------------------------------------------------------------------------------

  /** Read a conversation, however long it takes until the server answers; gives the run under way in it. */
  async #load(id: string, signal: AbortSignal, options: { join?: boolean } = {}): Promise<Run | null> {
    for (let attempt = 0; ; attempt += 1) {
      try {
        const found = await this.#read(id, signal);
        this.#set({ offline: false, phase: "idle" });
        if (options.join !== false) await this.#goOn(found, signal);
        return found?.run ?? null;
      } catch (error) {
        if (signal.aborted) return null;
        if (error instanceof Refused && error.status < 500) {
          const isMissing = error.status === 404;
          const shown = isMissing ? null : { text: error.message, retry: null };
          this.#set({ phase: "idle", offline: false, isMissing, error: shown });
          return null;
        }
        this.#set({ offline: true });
        try {
          await backOff(attempt, signal);
        } catch {
          return null;
        }
      }
    }
  }

  async #read(
    id: string,
    signal: AbortSignal,
    isOld: () => boolean = () => false,
  ): Promise<Conversation | null> {
    // What the list said before is at most older than what is read now: then it is read once more.
    this.#seen = this.#state.conversations.find((one) => one.id === id)?.updated ?? null;
    const found = await api.fetchConversation(id, signal);
    if (isOld()) return null;
    const after = fromMessages(found.messages, found.pending, found.calls);
    const transcript = readAgain(this.#state.transcript, after, found.error);
    this.#kept = found.model ?? null;
    this.#set({ transcript, model: this.#modelOf(this.#state.info) });
    return found;
  }

  /** Follow what is under way in a conversation, or what the end of a server has cut off in it. */
  async #goOn(found: Conversation | null, signal: AbortSignal): Promise<void> {
    if (found?.run) await this.#join(found.run, signal);
    else if (found?.error && CUT_OFF.has(found.error.code)) await this.#resume();
  }

  /** Go on with a turn that the end of a server has cut off; not for ever. */
  async #resume(): Promise<void> {
    if (this.#resumed >= MOST_RESUMED) return;
    this.#resumed += 1;
    await this.retry();
  }

  /** Something may have happened in the open conversation, by somebody else. */
  #readAgain(): void {
    const { conversationId: id, phase } = this.#state;
    const { signal } = this.#open;
    const turns = this.#turns;
    if (id === null || phase !== "idle") return;
    const isOld = (): boolean => signal.aborted || this.#turns !== turns;
    this.#read(id, signal, isOld).then(
      (found) => {
        if (!isOld()) void this.#goOn(found, signal);
      },
      () => {}, // it is read again soon
    );
  }

  async #loadInfo(): Promise<void> {
    for (let attempt = 0; this.#state.info === null; attempt += 1) {
      try {
        const info = await api.fetchInfo();
        this.#set({ info, model: this.#modelOf(info) });
      } catch (error) {
        if (error instanceof Refused && error.status === 404) {
          this.#set({ noChat: true });
          return;
        }
        await backOff(attempt, new AbortController().signal);
      }
    }
  }

  // --- inside ------------------------------------------------------------------------------------

  #modelOf(info: ChatInfo | null): ModelInfo | null {
    const name = this.#chosen ?? this.#kept;
    return info?.models?.find((one) => one.name === name) ?? this.#state.model ?? info?.model ?? null;
  }

  #model(): { model?: string } {
    return this.#chosen === null ? {} : { model: this.#chosen };
  }

  #tell(conversationId: string | null): void {
    this.#tabs?.postMessage({ conversationId } satisfies Shared);
  }

  #fail(error: unknown, retry: (() => void) | null): void {
    this.#set({ error: { text: readable(error), retry } });
  }

  /** The state changes at once; whoever shows it hears of it once a frame, however fast text comes in. */
  #set(change: Partial<ChatState>): void {
    this.#state = { ...this.#state, ...change };
    this.#frame ??= nextFrame(() => {
      this.#frame = null;
      for (const listener of this.#listeners) listener();
    });
  }
}

const without = <V>(map: ReadonlyMap<string, V>, keys: ReadonlySet<string>): ReadonlyMap<string, V> =>
  new Map([...map].filter(([key]) => !keys.has(key)));

/** A hidden page has no frames, but goes on all the same. */
function nextFrame(call: () => void): number {
  return document.hidden ? Number(setTimeout(call, 50)) : requestAnimationFrame(call);
}
