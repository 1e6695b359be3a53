/** One run of a method: its items as they come, its open questions, and the way to stop it. */
import { memo, type ReactNode, useEffect, useRef, useState } from "react";
import { readable } from "../api/http";
import type { Received } from "../api/socket";
import type { Reply, Schema } from "../api/types";
import { QuestionCard } from "../questions/QuestionCard";
import { isPlain, QuestionGroup } from "../questions/QuestionGroup";
import { fromRequest, type QuestionView } from "../questions/question";
import { ContentView } from "../ui/ContentView";
import { CopyButton } from "../ui/CopyButton";
import { Icon } from "../ui/Icon";
import { Json } from "../ui/Json";
import { Markdown } from "../ui/Markdown";
import { Progress } from "../ui/Progress";
import { sizeText } from "../ui/size";
import { runStore } from "./runStore";
import type { Asked, Run } from "./runs";
import { type Shown, shownOf, type TerminalLine } from "./shown";
import { TreeView } from "./TreeView";

const STATUS: Record<Run["status"], string> = {
  running: "running",
  done: "done",
  failed: "failed",
  cancelled: "cancelled",
  lost: "connection lost",
  elsewhere: "followed in another window",
};

/** How the person has ended it; whoever does not want to answer has not made it fail. */
function refusalOf(run: Run): "declined" | "cancelled" | null {
  const isRefused = run.status === "failed" && [...run.replies.values()].some((one) => one !== "accept");
  const code = isRefused && run.items.findLast((item) => item.type === "error")?.code;
  return code === "declined" || code === "cancelled" ? code : null;
}

export function RunView({ run, returns }: { run: Run; returns: Schema | null | undefined }): ReactNode {
  const [isRaw, setRaw] = useState(false);
  const card = useRef<HTMLElement>(null);
  useEffect(() => {
    card.current?.scrollIntoView({ block: "nearest" });
  }, []);
  const refusal = refusalOf(run);
  const seconds = run.ended === null ? null : (run.ended - run.started) / 1000;
  return (
    <article
      ref={card}
      className="run"
      data-status={refusal ?? run.status}
      aria-label={`Run ${run.id} of ${run.method}`}
    >
      <header>
        <span className="run-title">Run {run.id}</span>
        <span className="run-status" role="status">
          {run.isLost
            ? "Connection lost. Reconnecting…"
            : run.questions.length > 0
              ? "asks you"
              : refusal === null
                ? STATUS[run.status]
                : `${refusal} by you`}
          {seconds !== null && ` after ${seconds < 10 ? seconds.toFixed(2) : seconds.toFixed(0)} s`}
        </span>
        <span className="run-actions">
          <button
            type="button"
            className="button button-small"
            aria-pressed={isRaw}
            onClick={() => setRaw(!isRaw)}
          >
            Items
          </button>
          {run.ended === null && (
            <button type="button" className="button button-small" onClick={() => void runStore.stop(run.id)}>
              <Icon name="stop" /> Stop
            </button>
          )}
          {run.status === "elsewhere" && (
            <button type="button" className="button button-small" onClick={() => runStore.followHere(run.id)}>
              Follow here
            </button>
          )}
          {run.ended !== null && (
            <button
              type="button"
              className="icon-button"
              aria-label={`Remove run ${run.id}`}
              title="Remove"
              onClick={() => runStore.forget(run.id)}
            >
              <Icon name="cross" />
            </button>
          )}
        </span>
      </header>
      {isRaw ? (
        <Json value={withoutBytes(run.items)} label="items" />
      ) : (
        <>
          <ol className="items">
            {shownOf(run.items, returns, run.method.split(".").pop()).map((shown) => (
              <ShownView key={shown.key} shown={shown} run={run} />
            ))}
          </ol>
          {run.status === "done" && !run.items.some(({ type }) => type === "data") && (
            <p className="muted">(no output)</p>
          )}
          {run.progress !== null && run.ended === null && <Progress {...run.progress} />}
        </>
      )}
      <Questions run={run} />
    </article>
  );
}

const LONGEST_BYTES = 1000;

/** The items as they came, but for the bytes of pictures and files, which nobody can read. */
function withoutBytes(items: readonly Received[]): unknown {
  const short = (_: string, value: unknown): unknown =>
    typeof value === "string" && value.length > LONGEST_BYTES && /^[A-Za-z0-9+/_-]+={0,2}$/.test(value)
      ? `${value.slice(0, 20)}… (${sizeText(value.length)} of base64)`
      : value;
  return JSON.parse(JSON.stringify(items, short)) as unknown;
}

/** What a run asks now: several plain questions are one form. */
function Questions({ run }: { run: Run }): ReactNode {
  const plain = run.questions.filter(({ item }) => isPlain(fromRequest(item)));
  const grouped = plain.length > 1 ? plain : [];
  const single = run.questions.filter((one) => !grouped.includes(one)).map((one) => [one]);
  return [...(grouped.length > 0 ? [grouped] : []), ...single].map((asked) => (
    <AskedNow key={asked.map(({ item }) => item.request_id).join(" ")} asked={asked} run={run} />
  ));
}

function AskedNow({ asked, run }: { asked: readonly Asked[]; run: Run }): ReactNode {
  const [questions] = useState<QuestionView[]>(() =>
    asked.map(({ item, deadline }) =>
      fromRequest({ ...item, ...(deadline === null ? {} : { timeout_ms: deadline - Date.now() }) }),
    ),
  );
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const reply = async (given: readonly Reply[]): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      const answers = asked.flatMap((one, n) => (given[n] === undefined ? [] : [[one, given[n]] as const]));
      await runStore.reply(run.id, ...answers);
    } catch (failure) {
      setError(readable(failure));
      setBusy(false);
    }
  };
  const [only, ...more] = questions;
  if (only === undefined || more.length > 0)
    return (
      <QuestionGroup questions={questions} onReply={(given) => void reply(given)} busy={busy} error={error} />
    );
  return <QuestionCard question={only} onReply={(given) => void reply([given])} busy={busy} error={error} />;
}

function ShownView({ shown, run }: { shown: Shown; run: Run }): ReactNode {
  switch (shown.kind) {
    case "terminal":
      return (
        <li className="item">
          <Terminal lines={shown.lines} />
        </li>
      );
    case "text":
      return (
        <li className="item">
          <Markdown text={shown.text} />
        </li>
      );
    case "content":
      return (
        <li className="item item-data">
          {shown.contents.map((content, n) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: results have no other name
            <ContentView key={n} content={content} />
          ))}
        </li>
      );
    case "tree":
      return (
        <li className="item">
          <TreeView tree={shown.tree} />
        </li>
      );
    default:
      return (
        <ItemView
          item={shown.item}
          reply={shown.item.type === "request" ? run.replies.get(shown.item.request_id) : undefined}
          open={run.questions.some(({ item }) => item === shown.item)}
        />
      );
  }
}

function Terminal({ lines }: { lines: TerminalLine[] }): ReactNode {
  return (
    <section className="json terminal" aria-label="Output">
      <CopyButton text={lines.map((one) => one.line).join("\n")} label="Copy the output" />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard */}
      <pre tabIndex={0}>
        {lines.map((one, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: a line is what it is by its place
          <span key={n} data-stream={one.stream}>
            {one.line}
            {"\n"}
          </span>
        ))}
      </pre>
    </section>
  );
}

const ItemView = memo(function ItemView({
  item,
  reply,
  open,
}: {
  item: Received;
  reply: Reply["action"] | undefined;
  /** It is a question that is shown below. */
  open: boolean;
}): ReactNode {
  switch (item.type) {
    case "data":
      return (
        <li className="item item-data">
          <Json value={item.content} label="data" />
        </li>
      );
    case "log":
      return (
        <li className={`item item-log item-log-${item.level}`}>
          <span className="badge">{item.level}</span> {item.message}
          {item.data !== null && <Json value={item.data} label="data of the log" />}
        </li>
      );
    case "error":
      return (
        <li className="item item-error">
          <span role="alert">
            <Icon name="alert" /> {item.message} <code>{item.code}</code>
          </span>
        </li>
      );
    case "request":
      if (open) return null;
      return (
        <li className="item item-note">
          <Icon name="question" /> {fromRequest(item).message}
          {reply !== undefined && <span className="badge">{ACTIONS[reply]}</span>}
        </li>
      );
    case "request_cancelled":
      return (
        <li className="item item-note">
          <Icon name="cross" /> The question is withdrawn: {item.reason}
        </li>
      );
    default:
      return null;
  }
});

const ACTIONS: Record<Reply["action"], string> = {
  accept: "answered",
  decline: "declined",
  cancel: "cancelled",
};
