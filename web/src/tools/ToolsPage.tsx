/** Every method of the hub, to look at and to run. */
import { type ReactNode, useEffect, useMemo, useState } from "react";
import { readable } from "../api/http";
import { hub } from "../api/socket";
import type { HubSchema, MethodSchema } from "../api/types";
import { Link } from "../router";
import { Icon } from "../ui/Icon";
import { MethodView } from "./MethodView";
import { namespacesOf, search } from "./methods";
import "../styles/tools.css";

export default function ToolsPage({ method }: { method: string | null }): ReactNode {
  const [schema, setSchema] = useState<HubSchema | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [text, setText] = useState("");
  const [attempt, setAttempt] = useState(0);

  useEffect(() => {
    document.title = "Tools · midcall";
  }, []);
  // biome-ignore lint/correctness/useExhaustiveDependencies: tried again when the person says so
  useEffect(() => {
    let current = true;
    setError(null);
    hub.schema().then(
      (found) => current && setSchema(found),
      (failure: unknown) => current && setError(readable(failure)),
    );
    return () => {
      current = false;
    };
  }, [attempt]);

  const namespaces = useMemo(() => (schema === null ? [] : namespacesOf(schema)), [schema]);
  const found = useMemo(() => search(namespaces, text), [namespaces, text]);
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
            <button type="button" className="button button-small" onClick={() => setAttempt(attempt + 1)}>
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
                      <Marks method={each} />
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

export function Marks({ method }: { method: MethodSchema }): ReactNode {
  return (
    <span className="marks">
      {method.streaming && <span className="badge">stream</span>}
      {method.interactive && <span className="badge badge-accent">asks</span>}
    </span>
  );
}

const firstLine = (text: string): string => text.split("\n")[0] ?? "";
