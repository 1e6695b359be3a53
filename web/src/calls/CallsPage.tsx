/** The calls of whoever looks, and what others' calls ask of them: as they are now, and as they ended. */
import { type ReactNode, useCallback, useEffect, useRef, useState } from "react";
import { abortCall, type CallFilter, listCalls } from "../api/calls";
import { Refused, readable } from "../api/http";
import { hub } from "../api/socket";
import type { CallList, CallSummary } from "../api/types";
import { namespacesOf } from "../tools/methods";
import { announce } from "../ui/Announcer";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";
import { CallCard } from "./CallCard";
import "../styles/calls.css";

const POLL = 1000;
const NOTHING: CallList = { calls: [], next: null, admin: false };

export default function CallsPage(): ReactNode {
  const [filter, setFilter] = useState<CallFilter>({ which: "", state: "active", method: "" });
  const [list, setList] = useState<CallList | null>(null);
  /** The pages after the first, which are not read again and again. */
  const [older, setOlder] = useState<CallList | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [aborting, setAborting] = useState<CallSummary | null>(null);
  const wanted = useRef(filter);

  const read = useCallback(async (): Promise<void> => {
    const asked = wanted.current;
    try {
      const found = await listCalls(asked);
      if (asked !== wanted.current) return;
      setList(found);
      setError(null);
    } catch (failure) {
      if (asked === wanted.current) setError(readable(failure));
    }
  }, []);

  useEffect(() => {
    document.title = "Calls · midcall";
    let timer: ReturnType<typeof setTimeout> | undefined;
    let current = true;
    const look = async (): Promise<void> => {
      clearTimeout(timer);
      if (!document.hidden) await read();
      if (current) timer = setTimeout(() => void look(), POLL);
    };
    const onVisible = (): void => void look();
    document.addEventListener("visibilitychange", onVisible);
    void look();
    return () => {
      current = false;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [read]);

  const choose = (chosen: Partial<CallFilter>): void => {
    wanted.current = { ...wanted.current, ...chosen };
    setFilter(wanted.current);
    setList(null);
    setOlder(null);
    void read();
  };
  const readMore = async (): Promise<void> => {
    const asked = wanted.current;
    try {
      const more = await listCalls(asked, (older ?? list)?.next);
      if (asked === wanted.current) setOlder({ ...more, calls: [...(older?.calls ?? []), ...more.calls] });
    } catch (failure) {
      setError(readable(failure));
    }
  };
  const abort = async (call: CallSummary): Promise<void> => {
    setAborting(null);
    try {
      await abortCall(call.id, "Aborted on the page");
      announce(`${call.method} is aborted`);
    } catch (failure) {
      // One that has ended meanwhile is what was wanted.
      if (!(failure instanceof Refused && [404, 409].includes(failure.status))) setError(readable(failure));
    }
    await read();
  };

  const { calls, next, admin } = joined(list ?? NOTHING, older);
  const waiting = calls.filter((call) => call.waiting).length;
  const ended = calls.filter((call) => call.ended !== undefined).length;
  return (
    <main className="calls" id="main">
      <header className="page-head">
        <h1>Calls</h1>
        <p className="muted" role="status">
          {calls.length > 0 && summary(calls.length - waiting - ended, waiting, ended)}
        </p>
      </header>
      <Filters filter={filter} onChoose={choose} admin={admin} calls={calls} />
      {error !== null && (
        <div className="banner banner-error" role="alert">
          <Icon name="alert" />
          <span>{error} Retrying…</span>
        </div>
      )}
      {list === null && error === null && <p className="muted">Loading…</p>}
      {list !== null && calls.length === 0 && (
        <div className="empty">
          <Icon name="calls" />
          <p>{EMPTY[filter.state]}</p>
        </div>
      )}
      <ul className="call-list">
        {calls.map((call) => (
          <CallCard
            key={call.id}
            call={call}
            admin={admin}
            onAbort={() => setAborting(call)}
            onAnswered={() => void read()}
          />
        ))}
      </ul>
      {next !== null && (
        <button type="button" className="button calls-more" onClick={() => void readMore()}>
          Show older calls
        </button>
      )}
      {aborting !== null && (
        <Dialog title="Abort this call?" onClose={() => setAborting(null)}>
          <p>
            <strong>{aborting.method}</strong> ends at once, and its caller is told so. What it has done so
            far stays done.
          </p>
          <div className="dialog-actions">
            <button type="button" className="button" onClick={() => setAborting(null)}>
              Keep it running
            </button>
            <button type="button" className="button button-danger" onClick={() => void abort(aborting)}>
              Abort
            </button>
          </div>
        </Dialog>
      )}
    </main>
  );
}

/** The first page, which is the newer one, and those after it. */
function joined(first: CallList, older: CallList | null): CallList {
  if (older === null) return first;
  const known = new Set(first.calls.map((call) => call.id));
  return {
    ...first,
    calls: [...first.calls, ...older.calls.filter((call) => !known.has(call.id))],
    next: older.next,
  };
}

function summary(running: number, waiting: number, ended: number): string {
  const parts = [
    [running, "running"],
    [waiting, "waiting for an answer"],
    [ended, "finished"],
  ] as const;
  return parts
    .filter(([count]) => count > 0)
    .map(([count, what]) => `${count} ${what}`)
    .join(", ");
}

const EMPTY: Record<CallFilter["state"], string> = {
  active: "Nothing is running or waiting.",
  waiting: "Nothing is waiting for an answer.",
  running: "Nothing is running.",
  finished: "No finished calls. They are kept for a day.",
  any: "No calls yet.",
};

function Filters(props: {
  filter: CallFilter;
  onChoose: (chosen: Partial<CallFilter>) => void;
  admin: boolean;
  calls: readonly CallSummary[];
}): ReactNode {
  const { filter, onChoose } = props;
  const methods = useMethods(props.calls, filter.method);
  return (
    <search className="call-filters" aria-label="Calls">
      <label>
        <span>Whose</span>
        <select
          value={filter.which}
          onChange={(event) => onChoose({ which: event.target.value as CallFilter["which"] })}
        >
          <option value="">Mine and asked of me</option>
          <option value="mine">Mine</option>
          <option value="asked">Asked of me</option>
          {(props.admin || filter.which === "all") && <option value="all">Everybody’s</option>}
        </select>
      </label>
      <label>
        <span>Status</span>
        <select
          value={filter.state}
          onChange={(event) => onChoose({ state: event.target.value as CallFilter["state"] })}
        >
          <option value="active">Running and waiting</option>
          <option value="waiting">Waiting</option>
          <option value="running">Running</option>
          <option value="finished">Finished</option>
          <option value="any">All</option>
        </select>
      </label>
      <label>
        <span>Method</span>
        <select value={filter.method} onChange={(event) => onChoose({ method: event.target.value })}>
          <option value="">All methods</option>
          {methods.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
    </search>
  );
}

/** The names of the hub's methods, and of those that were called. */
function useMethods(calls: readonly CallSummary[], chosen: string): string[] {
  const [known, setKnown] = useState<readonly string[]>([]);
  useEffect(() => {
    let current = true;
    hub.schema().then(
      (schema) => {
        const names = namespacesOf(schema).flatMap((one) => one.methods.map((method) => method.name));
        if (current) setKnown(names);
      },
      () => {}, // those that were called are there
    );
    return () => {
      current = false;
    };
  }, []);
  const all = new Set([...known, ...calls.map((call) => call.method), ...(chosen ? [chosen] : [])]);
  return [...all].sort();
}
