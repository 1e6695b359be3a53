/** One resource, one template of resources, and one prompt. */
import { type FormEvent, type ReactNode, useCallback, useEffect, useState } from "react";
import { readable } from "../api/http";
import {
  mcp,
  type Prompt,
  type PromptMessage,
  type Reference,
  type Resource,
  type ResourceTemplate,
} from "../api/mcp";
import { humanName } from "../forms/schema";
import { Link } from "../router";
import { announce } from "../ui/Announcer";
import { ContentView, contentsOf, resourceOf } from "../ui/ContentView";
import { Icon } from "../ui/Icon";
import { Markdown } from "../ui/Markdown";
import { CompletedInput } from "./CompletedInput";
import { expand, variablesOf } from "./template";

export function ResourceView({ resource }: { resource: Resource }): ReactNode {
  return (
    <Framed of={resource}>
      <p className="resource-uri">
        <code>{resource.uri}</code>
        {resource.mimeType && <span className="badge">{resource.mimeType}</span>}
      </p>
      <Contents uri={resource.uri} />
    </Framed>
  );
}

export function TemplateView({ template }: { template: ResourceTemplate }): ReactNode {
  const names = variablesOf(template.uriTemplate);
  const [uri, setUri] = useState<string | null>(null);
  return (
    <Framed of={template}>
      <p className="resource-uri">
        <code>{template.uriTemplate}</code>
        {template.mimeType && <span className="badge">{template.mimeType}</span>}
      </p>
      <Arguments
        of={{ type: "ref/resource", uri: template.uriTemplate }}
        wanted={names.map((name) => ({ name, required: true }))}
        action="Read"
        onGiven={(values) => setUri(expand(template.uriTemplate, values))}
      />
      {uri !== null && (
        <>
          <p className="resource-uri">
            <code>{uri}</code>
          </p>
          <Contents key={uri} uri={uri} />
        </>
      )}
    </Framed>
  );
}

export function PromptView({ prompt }: { prompt: Prompt }): ReactNode {
  const [messages, setMessages] = useState<readonly PromptMessage[] | null>(null);
  const [error, setError] = useState<string | null>(null);
  const get = async (values: Record<string, string>): Promise<void> => {
    const given = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
    try {
      setMessages(await mcp.prompt(prompt.name, given));
      setError(null);
    } catch (failure) {
      setMessages(null);
      setError(readable(failure));
    }
  };
  return (
    <Framed of={prompt}>
      <Arguments
        of={{ type: "ref/prompt", name: prompt.name }}
        wanted={prompt.arguments ?? []}
        action="Get"
        onGiven={(values) => void get(values)}
      />
      {error !== null && <Failure text={error} />}
      {messages !== null && (
        <section aria-label="Messages" className="prompt-messages">
          {messages.map((message, n) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: messages have no other name
            <article key={n} className="prompt-message">
              <h3>{humanName(message.role)}</h3>
              {contentsOf(message.content).map((content, m) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: parts have no other name
                <ContentView key={m} content={content} />
              ))}
            </article>
          ))}
        </section>
      )}
    </Framed>
  );
}

function Framed(props: {
  of: { name: string; title?: string; description?: string };
  children: ReactNode;
}): ReactNode {
  const { name, title, description } = props.of;
  return (
    <article className="method" aria-labelledby="resource-title">
      <Link to={{ page: "resources", uri: null, template: null, prompt: null }} className="method-back">
        <Icon name="back" /> All resources and prompts
      </Link>
      <header>
        <h2 id="resource-title">{title ?? name}</h2>
      </header>
      {description && <Markdown text={description} />}
      {props.children}
    </article>
  );
}

/** The arguments of a prompt, or the variables of a template. */
function Arguments(props: {
  of: Reference;
  wanted: readonly { name: string; title?: string; description?: string; required?: boolean }[];
  action: string;
  onGiven: (values: Record<string, string>) => void;
}): ReactNode {
  const [values, setValues] = useState<Record<string, string>>({});
  const [tried, setTried] = useState(false);
  const missing = new Set(
    props.wanted.filter((one) => one.required && !values[one.name]).map((one) => one.name),
  );
  const submit = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    setTried(true);
    const form = event.currentTarget;
    if (missing.size === 0) props.onGiven(values);
    else requestAnimationFrame(() => form.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
  };
  return (
    <form className="form" onSubmit={submit} noValidate>
      {props.wanted.map((one) => (
        <CompletedInput
          key={one.name}
          of={props.of}
          name={one.name}
          label={one.title ?? humanName(one.name)}
          about={one.description}
          required={one.required === true}
          values={values}
          fault={tried && missing.has(one.name) ? "Required" : null}
          onChange={(value) => setValues((before) => ({ ...before, [one.name]: value }))}
        />
      ))}
      <div className="form-actions">
        <button type="submit" className="button button-primary">
          <Icon name="play" /> {props.action}
        </button>
      </div>
    </form>
  );
}

/** What is read at a URI; if wanted, again whenever it changes. */
function Contents({ uri }: { uri: string }): ReactNode {
  const [contents, setContents] = useState<readonly Record<string, unknown>[] | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [isWatched, setWatched] = useState(false);
  const [updates, setUpdates] = useState(0);

  const read = useCallback(async (): Promise<void> => {
    try {
      setContents(await mcp.read(uri));
      setError(null);
    } catch (failure) {
      setError(readable(failure));
    }
  }, [uri]);
  useEffect(() => void read(), [read]);
  useEffect(() => {
    if (!isWatched) return;
    let end: (() => void) | null = null;
    let current = true;
    const changed = (): void => {
      setUpdates((count) => count + 1);
      announce("The resource has changed");
      void read();
    };
    mcp.watch(uri, changed).then(
      (stop) => {
        if (current) end = stop;
        else stop();
      },
      (failure: unknown) => {
        setWatched(false);
        setError(readable(failure));
      },
    );
    return () => {
      current = false;
      end?.();
    };
  }, [isWatched, uri, read]);
  return (
    <section aria-label="Contents" className="resource-contents">
      <div className="form-actions">
        <button type="button" className="button" onClick={() => void read()}>
          <Icon name="again" /> Read again
        </button>
        <button
          type="button"
          className="button"
          aria-pressed={isWatched}
          onClick={() => setWatched(!isWatched)}
        >
          <Icon name="bell" /> Subscribe
        </button>
        {isWatched && (
          <span className="muted" role="status">
            {updates === 0 ? "Waiting for changes" : `Changed ${updates === 1 ? "once" : `${updates} times`}`}
          </span>
        )}
      </div>
      {error !== null && <Failure text={error} />}
      {contents === null && error === null && <p className="muted">Loading…</p>}
      {contents?.map((one, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: parts have no other name
        <ContentView key={n} content={resourceOf(one)} />
      ))}
      {contents?.length === 0 && <p className="muted">It is empty.</p>}
    </section>
  );
}

function Failure({ text }: { text: string }): ReactNode {
  return (
    <p className="question-error" role="alert">
      <Icon name="alert" /> {text}
    </p>
  );
}
