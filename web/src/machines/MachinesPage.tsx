/** The machines of the hub: one of them drawn, with a run of it: live, or at any point of its trail. */
import { type ReactNode, useCallback, useEffect, useMemo, useState, useSyncExternalStore } from "react";
import { callsOf } from "../api/calls";
import { Refused, readable } from "../api/http";
import { getMachine, listMachines, type MachineSummary, startRun } from "../api/machines";
import { hub } from "../api/socket";
import type { CallSummary, Schema } from "../api/types";
import type { Fault } from "../forms/check";
import { SchemaForm } from "../forms/SchemaForm";
import { go, Link } from "../router";
import { namespacesOf } from "../tools/methods";
import { announce } from "../ui/Announcer";
import { ageText } from "../ui/age";
import { Icon } from "../ui/Icon";
import { Drawing } from "./Drawing";
import { stateName } from "./layout";
import { bailOut, type Machine, takenUpTo } from "./machine";
import { isTroubled, RunPanel } from "./RunPanel";
import { Run } from "./run";
import "../styles/machines.css";

export default function MachinesPage({
  machine,
  run,
}: {
  machine: string | null;
  run: string | null;
}): ReactNode {
  const { value: machines, error, retry } = useLoaded(listMachines);
  const chosen = machines?.find((one) => one.id === machine);
  const [only] = machines?.length === 1 ? machines : [];

  useEffect(() => {
    document.title = "Machines · midcall";
  }, []);
  useEffect(() => {
    if (machine === null && only !== undefined) {
      go({ page: "machines", machine: only.id, run: null }, { replace: true });
    }
  }, [machine, only]);

  return (
    <main className="machines" id="main" data-chosen={machine !== null || undefined}>
      <div className="machines-side">
        <h1 className="sr-only">Machines</h1>
        <Failure error={error} retry={retry} />
        {machines === null && error === null && <p className="muted">Loading…</p>}
        <nav aria-label="Machines">
          <ul>
            {machines?.map((one) => (
              <li key={one.id}>
                <Link
                  to={{ page: "machines", machine: one.id, run: null }}
                  className="machine-link"
                  aria-current={one.id === machine ? "page" : undefined}
                >
                  <span className="machine-name">{one.id}</span>
                  <span className="machine-about">{one.description.split("\n")[0]}</span>
                </Link>
              </li>
            ))}
          </ul>
        </nav>
        {chosen !== undefined && <RunList key={chosen.id} machine={chosen} run={run} />}
      </div>
      {chosen !== undefined ? (
        <MachineView key={chosen.id} summary={chosen} run={run} />
      ) : (
        <p className="empty machines-empty">
          {machines === null
            ? ""
            : machine === null
              ? "Choose a machine."
              : `There is no machine ${machine}.`}
        </p>
      )}
    </main>
  );
}

function MachineView({ summary, run }: { summary: MachineSummary; run: string | null }): ReactNode {
  const load = useCallback(async () => {
    const [machine, schema] = await Promise.all([getMachine(summary.id), hub.schema()]);
    const methods = namespacesOf(schema).flatMap((one) => one.methods);
    const input: Schema = methods.find((one) => one.name === summary.method)?.params ?? {};
    return { machine: { ...machine, id: summary.id }, input };
  }, [summary]);
  const { value, error, retry } = useLoaded(load);
  return (
    <section className="machine" aria-labelledby="machine-title">
      <header className="machine-head">
        <Link to={{ page: "machines", machine: null, run: null }} className="machine-back">
          <Icon name="back" /> All machines
        </Link>
        <h2 id="machine-title">{summary.id}</h2>
        {summary.description && <p className="muted">{summary.description}</p>}
        {run !== null && (
          <Link to={{ page: "machines", machine: summary.id, run: null }} className="button button-small">
            <Icon name="plus" /> New run
          </Link>
        )}
      </header>
      <Failure error={error} retry={retry} />
      {value === null ? (
        error === null && <p className="muted machine-body">Loading…</p>
      ) : run === null ? (
        <div className="machine-body">
          <Drawing machine={value.machine} taken={null} isTroubled={false} isAsking={false} />
          <div className="machine-side">
            <Start summary={summary} input={value.input} />
          </div>
        </div>
      ) : (
        <RunView key={run} id={run} machine={value.machine} />
      )}
    </section>
  );
}

function Start({ summary, input }: { summary: MachineSummary; input: Schema }): ReactNode {
  const [faults, setFaults] = useState<readonly Fault[]>([]);
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const start = async (given: unknown): Promise<void> => {
    setBusy(true);
    setFaults([]);
    setError(null);
    try {
      go({ page: "machines", machine: summary.id, run: await startRun(summary.id, given) });
    } catch (failure) {
      setError(readable(failure));
      if (failure instanceof Refused) setFaults(failure.details);
      setBusy(false);
    }
  };
  return (
    <section className="machine-start" aria-labelledby="machine-start">
      <h3 id="machine-start">Start a run</h3>
      <SchemaForm
        schema={
          input.properties && Object.keys(input.properties).length > 0 ? input : { ...input, default: {} }
        }
        onSubmit={(given) => void start(given)}
        faults={faults}
        disabled={busy}
        raw
        actions={
          <button type="submit" className="button button-primary" disabled={busy}>
            <Icon name="play" /> Run
          </button>
        }
      >
        {error !== null && (
          <p className="question-error" role="alert">
            <Icon name="alert" /> {error}
          </p>
        )}
      </SchemaForm>
    </section>
  );
}

function RunView({ id, machine }: { id: string; machine: Machine }): ReactNode {
  const run = useMemo(() => new Run(id, machine), [id, machine]);
  const state = useSyncExternalStore(run.subscribe, () => run.state);
  const [chosen, setChosen] = useState<number | null>(null);
  const last = state.trail.length - 1;
  const point = Math.max(0, Math.min(chosen ?? last, last));
  const taken = useMemo(() => takenUpTo(state.trail, point), [state.trail, point]);

  // Whoever looks at the last entry follows the run.
  const look = useCallback(
    (next: number) => setChosen(next >= run.state.trail.length - 1 ? null : next),
    [run],
  );

  useEffect(() => {
    void run.follow();
    return () => run.leave();
  }, [run]);
  const { at } = taken;
  // A question is announced in its own words.
  const isToSay = point === last && state.status !== "loading" && state.questions.length === 0;
  useEffect(() => {
    if (isToSay) announce(`${machine.id}: ${stateName(at)}`);
  }, [isToSay, at, machine.id]);

  const entry = state.trail[point];
  const wasRefused = entry?.error !== undefined || bailOut(entry) !== null;
  return (
    <div className="machine-body">
      <Drawing
        machine={machine}
        taken={state.trail.length === 0 ? null : taken}
        isTroubled={wasRefused || (point === last && isTroubled(state))}
        isAsking={point === last && state.questions.length > 0}
      />
      <div className="machine-side">
        <RunPanel
          run={run}
          state={state}
          machine={machine}
          point={point}
          onPoint={look}
          onAgain={() => void run.follow()}
        />
      </div>
    </div>
  );
}

const STATUS: Record<string, string> = {
  waiting: "asks",
  awaiting_answer: "asks",
  completed: "ended",
  diverged: "stands still",
  poisoned: "failed",
};

const POLL = 3000;
const MOST_RUNS = 30;

/** The runs of a machine, the newest first. */
function RunList({ machine, run }: { machine: MachineSummary; run: string | null }): ReactNode {
  const [runs, setRuns] = useState<readonly CallSummary[]>([]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: read anew when another run is opened
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isCurrent = true;
    const look = async (): Promise<void> => {
      if (!document.hidden) {
        const found = await callsOf(machine.method).catch(() => null);
        if (found !== null && isCurrent) setRuns(found);
      }
      if (isCurrent) timer = setTimeout(() => void look(), POLL);
    };
    void look();
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [machine.method, run]);
  if (runs.length === 0) return null;
  return (
    <nav className="run-list" aria-label={`Runs of ${machine.id}`}>
      <h2>Runs</h2>
      <ul>
        {runs.slice(0, MOST_RUNS).map((one) => (
          <li key={one.id}>
            <Link
              to={{ page: "machines", machine: machine.id, run: one.id }}
              className="run-link"
              aria-current={one.id === run ? "page" : undefined}
            >
              <span className={one.waiting ? "badge badge-accent" : "badge"}>
                {STATUS[one.status] ?? one.status}
              </span>
              <span className="muted">{ageText(one.age)} ago</span>
            </Link>
          </li>
        ))}
      </ul>
    </nav>
  );
}

/** What is read once, and again when the person says so. */
function useLoaded<T>(load: () => Promise<T>): { value: T | null; error: string | null; retry: () => void } {
  const [value, setValue] = useState<T | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [attempt, setAttempt] = useState(0);
  // biome-ignore lint/correctness/useExhaustiveDependencies: tried again when the person says so
  useEffect(() => {
    let isCurrent = true;
    setError(null);
    load().then(
      (found) => isCurrent && setValue(found),
      (failure: unknown) => isCurrent && setError(readable(failure)),
    );
    return () => {
      isCurrent = false;
    };
  }, [load, attempt]);
  return { value, error, retry: () => setAttempt((before) => before + 1) };
}

function Failure({ error, retry }: { error: string | null; retry: () => void }): ReactNode {
  if (error === null) return null;
  return (
    <div className="banner banner-error" role="alert">
      <Icon name="alert" />
      <span>{error}</span>
      <button type="button" className="button button-small" onClick={retry}>
        Retry
      </button>
    </div>
  );
}
