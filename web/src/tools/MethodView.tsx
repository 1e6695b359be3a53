/** One method: what it takes as a form, and its runs, the newest first. */
import { type ReactNode, useState } from "react";
import { readable } from "../api/http";
import { RpcError } from "../api/socket";
import type { MethodSchema } from "../api/types";
import type { Fault } from "../forms/check";
import { SchemaForm } from "../forms/SchemaForm";
import { Link } from "../router";
import { Icon } from "../ui/Icon";
import { Json } from "../ui/Json";
import { Markdown } from "../ui/Markdown";
import { RunView } from "./RunView";
import { runStore, useRuns } from "./runStore";
import { Marks } from "./ToolsPage";

export function MethodView({ method }: { method: MethodSchema }): ReactNode {
  const runs = useRuns().filter((run) => run.method === method.name);
  const [faults, setFaults] = useState<readonly Fault[]>([]);
  const [error, setError] = useState<string | null>(null);

  const start = async (params: unknown): Promise<void> => {
    setFaults([]);
    setError(null);
    try {
      await runStore.start(method.name, params);
    } catch (failure) {
      setError(readable(failure));
      if (failure instanceof RpcError) setFaults(failure.data?.errors ?? []);
    }
  };

  return (
    <article className="method" aria-labelledby="method-title">
      <Link to={{ page: "tools", method: null }} className="method-back">
        <Icon name="back" /> All methods
      </Link>
      <header>
        <h2 id="method-title">{method.name}</h2>
        <Marks method={method} />
      </header>
      {method.description && <Markdown text={method.description} />}
      <SchemaForm
        schema={method.params}
        onSubmit={(params) => void start(params)}
        faults={faults}
        raw
        actions={
          <button type="submit" className="button button-primary">
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
      <details className="method-schema">
        <summary>
          <Icon name="chevron" className="fold" /> Schema
        </summary>
        <h3>Parameters</h3>
        <Json value={method.params} label="parameters" />
        {method.returns && (
          <>
            <h3>Gives</h3>
            <Json value={method.returns} label="result schema" />
          </>
        )}
      </details>
      <section aria-label="Runs" className="runs">
        {runs.map((run) => (
          <RunView key={run.id} run={run} returns={method.returns} />
        ))}
      </section>
    </article>
  );
}
