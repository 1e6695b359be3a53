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
  ConversationSummary,
  Elicit,
  ElicitResponse,
  ModelInfo,
  Reply,
} from "../api/types";
import { Speech } from "../ui/Announcer";
import { apply, type Entry, fromMessages, questionsOf, type Transcript, withoutQuestion } from "./transcript";

export interface ChatState {
  info: ChatInfo | null;
  model: ModelInfo | null;
  conversations: readonly ConversationSummary[];
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
  model: null,
  conversations: [],
  conversationId: null,
  transcript: [],
  phase: "idle",
  offline: false,
  error: null,
  sending: new Map(),
  refusals: new Map(),
};

const POLL = 4000;

/** What tabs tell each other: something has happened in this conversation, or to the list. */
interface Shared {
  conversationId: string | null;
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
  #frame: number | null = null;

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
      if (!document.hidden) void this.refreshList();
    };
    const timer = setInterval(look, POLL);
    document.addEventListener("visibilitychange", look);
    const fromTab = ({ data }: MessageEvent<Shared>): void => {
      void this.refreshList();
      if (data.conversationId !== null && data.conversationId === this.#state.conversationId)
        this.#readAgain();
    };
    this.#tabs?.addEventListener("message", fromTab);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
      this.#tabs?.removeEventListener("message", fromTab);
    };
  }

  // --- conversations -----------------------------------------------------------------------------

  /** Show a conversation, or the beginning of a new one. */
  open(id: string | null): void {
    if (id !== null && id === this.#state.conversationId && this.#state.error === null) return;
    const signal = this.#leave();
    this.#set({ ...closed(this.#state), conversationId: id, phase: id === null ? "idle" : "loading" });
    if (id !== null) void this.#load(id, signal);
  }

  async refreshList(): Promise<void> {
    let conversations: ConversationSummary[];
    try {
      conversations = await api.listConversations();
    } catch {
      return; // the list is not worth a message: what matters says so itself
    }
    this.#set({ conversations });
    const mine = conversations.find((one) => one.id === this.#state.conversationId);
    if (mine === undefined || this.#state.phase !== "idle") return;
    const changed = this.#seen !== null && this.#seen !== mine.updated;
    this.#seen = mine.updated;
    if (changed || mine.running) this.#readAgain();
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

  async send(text: string): Promise<void> {
    const { conversationId, phase } = this.#state;
    if (phase !== "idle") return;
    const said: Entry = { kind: "user", text };
    const transcript = [...settled(this.#state.transcript), said];
    const count = countOf(transcript);
    this.#set({ transcript, error: null, phase: "running" });
    await this.#turn({
      body: { message: text, ...(conversationId === null ? {} : { conversationId }) },
      isThere: () => countOf(this.#state.transcript) >= count,
      lost: (reason) => {
        const left = this.#state.transcript.filter((entry) => entry !== said);
        this.#set({ transcript: [...left, { kind: "user", text, unsent: reason }] });
      },
    });
  }

  /** Send a message again that did not arrive. */
  async resend(text: string): Promise<void> {
    const transcript = this.#state.transcript.filter(
      (entry) => !(entry.kind === "user" && entry.unsent !== undefined && entry.text === text),
    );
    this.#set({ transcript });
    await this.send(text);
  }

  /** Send the last message again, after a turn that failed. */
  async retry(): Promise<void> {
    const last = this.#state.transcript.findLast((entry) => entry.kind === "user");
    if (last?.kind === "user") await this.send(last.text);
  }

  /** Answer a question, or refuse to; while a turn runs the answer waits for its end. */
  answer = async (elicit: Elicit, result: Reply): Promise<void> => {
    const { sessionId, callId, elicitId } = elicit;
    const sending = new Map(this.#state.sending).set(elicitId, { sessionId, callId, elicitId, result });
    this.#set({ sending, refusals: without(this.#state.refusals, new Set([elicitId])) });
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
    const { conversationId } = this.#state;
    if (responses.length === 0 || conversationId === null) {
      this.#set({ sending: new Map() });
      return;
    }
    this.#set({ phase: "running", error: null });
    const ids = new Set(responses.map((one) => one.elicitId));
    const answered = responses.flatMap(({ elicitId }) => open.get(elicitId) ?? []);
    const sent = (): void => this.#set({ sending: without(this.#state.sending, ids) });
    await this.#turn({
      body: { conversationId, pluginElicitResponses: responses },
      arrived: () => {
        sent();
        this.#set({ transcript: answered.reduce(withoutQuestion, this.#state.transcript) });
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

  /** Begin a turn and follow it to its end. */
  async #turn(turn: Turn): Promise<void> {
    const { signal } = this.#open;
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
    await this.#follow(
      { first: response, sessionId: response.headers.get("X-Session-Id") ?? "", lastLsn: 0 },
      signal,
    );
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

  async #join(run: Run, signal: AbortSignal): Promise<void> {
    this.#set({ phase: "running" });
    await this.#follow({ sessionId: run.sessionId, lastLsn: run.lsn }, signal);
  }

  async #follow(
    run: { first?: Response; sessionId: string; lastLsn: number },
    signal: AbortSignal,
  ): Promise<void> {
    const onLine = (isUp: boolean): void => this.#set({ offline: !isUp });
    try {
      for await (const event of follow({ ...run, reopen: api.joinRun, signal, onLine })) this.#take(event);
    } catch (error) {
      if (signal.aborted) return;
      this.#set({ offline: false });
      const { conversationId } = this.#state;
      if (error instanceof RunGone && conversationId !== null) {
        await this.#load(conversationId, signal);
        return;
      }
      this.#fail(error, null);
    }
    if (signal.aborted) return;
    this.#speech.end();
    this.#seen = null;
    this.#set({ phase: "idle" });
    this.#tell(this.#state.conversationId);
    if (this.#state.sending.size > 0) await this.#sendAnswers();
    else await this.refreshList();
  }

  #take(event: ChatEvent): void {
    if (event.type === "session_info") {
      const isNew = this.#state.conversationId === null;
      this.#set({ conversationId: event.conversationId, model: event.model });
      if (isNew) this.onBegun(event.conversationId);
      this.#tell(event.conversationId);
      void this.refreshList();
    }
    if (event.type === "text") this.#speech.add(event.content);
    else if (event.type !== "thinking") this.#speech.end();
    if (event.type === "plugin_session_error" && event.error === "ELICIT_MISMATCH") {
      const mine = questionsOf(this.#state.transcript).filter((one) => one.callId === event.callId);
      const refusals = new Map(this.#state.refusals);
      for (const { elicitId } of mine)
        refusals.set(elicitId, "It was answered elsewhere, or asked again meanwhile.");
      this.#set({ refusals });
    }
    this.#set({ transcript: apply(this.#state.transcript, event) });
  }

  // --- reading -----------------------------------------------------------------------------------

  /** Read a conversation, until the server answers; gives the run that is under way in it. */
  async #load(id: string, signal: AbortSignal, options: { join?: boolean } = {}): Promise<Run | null> {
    for (let attempt = 0; ; attempt += 1) {
      try {
        // What the list said before is at most older than what is read now: then it is read once more.
        this.#seen = this.#state.conversations.find((one) => one.id === id)?.updated ?? null;
        const found = await api.fetchConversation(id, signal);
        this.#set({
          offline: false,
          transcript: fromMessages(found.messages, found.pending),
          phase: "idle",
        });
        if (found.run !== null && options.join !== false) await this.#join(found.run, signal);
        return found.run;
      } catch (error) {
        if (signal.aborted) return null;
        if (error instanceof Refused && error.status < 500) {
          const text = error.status === 404 ? "There is no such conversation (any more)." : error.message;
          this.#set({ phase: "idle", offline: false, error: { text, retry: null } });
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

  /** Something has happened in the open conversation, by somebody else. */
  #readAgain(): void {
    const { conversationId, phase } = this.#state;
    if (conversationId === null || phase !== "idle") return;
    void this.#load(conversationId, this.#leave());
  }

  async #loadInfo(): Promise<void> {
    for (let attempt = 0; ; attempt += 1) {
      try {
        const info = await api.fetchInfo();
        this.#set({ info, model: this.#state.model ?? info.model });
        return;
      } catch (error) {
        if (error instanceof Refused) {
          const text =
            error.status === 404
              ? "This server has no chat. Its tools can be called from Tools."
              : error.message;
          this.#set({ error: { text, retry: null } });
          return;
        }
        await backOff(attempt, new AbortController().signal);
      }
    }
  }

  // --- inside ------------------------------------------------------------------------------------

  /** Let go of what is followed; the run goes on in the server. */
  #leave(): AbortSignal {
    this.#open.abort();
    this.#open = new AbortController();
    return this.#open.signal;
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

/** What does not belong to the conversation that is left. */
const closed = (state: ChatState): ChatState => ({
  ...EMPTY,
  info: state.info,
  model: state.model,
  conversations: state.conversations,
});

/** Without notices of turns that are over. */
const settled = (transcript: Transcript): Transcript => transcript.filter((entry) => entry.kind !== "notice");

const without = <V>(map: ReadonlyMap<string, V>, keys: ReadonlySet<string>): ReadonlyMap<string, V> =>
  new Map([...map].filter(([key]) => !keys.has(key)));

const countOf = (transcript: Transcript): number =>
  transcript.filter((entry) => entry.kind === "user").length;

/** A hidden page has no frames, but goes on all the same. */
function nextFrame(call: () => void): number {
  return document.hidden ? Number(setTimeout(call, 50)) : requestAnimationFrame(call);
}
