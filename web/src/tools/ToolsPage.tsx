/** Every method of the hub, to look at and to run. */
import { type ReactNode, useEffect, useMemo, useState } from "react";
import { useAnswer } from "../api/reach";
import { hub } from "../api/socket";
import type { MethodSchema } from "../api/types";
import { Link } from "../router";
import { Icon } from "../ui/Icon";
import { MethodView } from "./MethodView";
import { namespacesOf, search } from "./methods";
import { useRuns } from "./runStore";
import "../styles/tools.css";

const schemaOf = () => hub.schema();

/** A server that comes back may have other methods. */
const onLost = (again: () => void): (() => void) => {
  hub.onLost = again;
  return () => {
    hub.onLost = () => {};
  };
};

export default function ToolsPage({ method }: { method: string | null }): ReactNode {
  const { answer: schema, error, again } = useAnswer(schemaOf, onLost);
  const [text, setText] = useState("");

  useEffect(() => {
    document.title = "Tools · midcall";
  }, []);
  const namespaces = useMemo(() => (schema === null ? [] : namespacesOf(schema)), [schema]);
  const found = useMemo(() => search(namespaces, text), [namespaces, text]);
  const runsNow = useRunsNow();
  const chosen = namespaces.flatMap((one) => one.methods).find((one) => one.name === method);
  return (
    <main className="tools" id="main" data-chosen={method !== null || undefined}>
      <div className="tools-side">
        <h1 className="sr-only">Tools</h1>
        <div className="search">
          <Icon name="search" />
          <label className="sr-only" htmlFor="tools-search">
            Search methods
          </label>
          <input
            id="tools-search"
            type="search"
            placeholder="Search methods"
            value={text}
            autoComplete="off"
            onChange={(event) => setText(event.target.value)}
          />
        </div>
        <p className="sr-only" role="status">
          {schema === null ? "" : `${found.reduce((sum, one) => sum + one.methods.length, 0)} methods`}
        </p>
        {error !== null && (
          <div className="banner banner-error" role="alert">
            <Icon name="alert" />
            <span>{error}</span>
            <button type="button" className="button button-small" onClick={again}>
              Retry
            </button>
          </div>
        )}
        {schema === null && error === null && <p className="muted">Loading…</p>}
        <nav aria-label="Methods">
          {found.map((one) => (
            <section key={one.name} className="namespace">
              <h2>{one.name || schema?.name}</h2>
              <ul>
                {one.methods.map((each) => (
                  <li key={each.name}>
                    <Link
                      to={{ page: "tools", method: each.name }}
                      className="method-link"
                      aria-current={each.name === method ? "page" : undefined}
                    >
                      <span className="method-name">{each.name}</span>
                      <Marks method={each} now={runsNow.get(each.name)} />
                      <span className="method-about">{firstLine(each.description)}</span>
                    </Link>
                  </li>
                ))}
              </ul>
            </section>
          ))}
        </nav>
        {schema !== null && found.length === 0 && (
          <p className="muted">{text ? `No method has “${text}”.` : "This hub has no methods."}</p>
        )}
      </div>
      <div className="tools-main">
        {chosen !== undefined ? (
          <MethodView key={chosen.name} method={chosen} />
        ) : method !== null && schema !== null ? (
          <p className="empty">There is no method {method}.</p>
        ) : (
          <div className="empty">
            <Icon name="tool" />
            <p>Choose a method to see what it takes, and run it.</p>
          </div>
        )}
      </div>
    </main>
  );
}

/** The methods of which there is a run that has not ended, and how that stands. */
function useRunsNow(): ReadonlyMap<string, string> {
  const runs = useRuns().filter((run) => run.ended === null);
  const asking = runs.filter((run) => run.questions.length > 0);
  return new Map([
    ...runs.map(({ method }) => [method, "running"] as const),
    ...asking.map(({ method }) => [method, "asks you"] as const),
  ]);
}

export function Marks({ method, now }: { method: MethodSchema; now?: string | undefined }): ReactNode {
  if (now !== undefined)
    return (
      <span className="marks">
        <span className="badge badge-now">{now}</span>
      </span>
    );
  return (
    <span className="marks">
      {method.streaming && <span className="badge">stream</span>}
      {method.interactive && <span className="badge badge-accent">asks</span>}
    </span>
  );
}

const firstLine = (text: string): string => text.split("\n")[0] ?? "";
