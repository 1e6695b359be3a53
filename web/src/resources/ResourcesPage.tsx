/** What the hub offers beside methods: resources, templates of resources, and prompts. */
import { type ReactNode, useCallback, useEffect, useState } from "react";
import { readable } from "../api/http";
import { mcp, type Prompt, type Resource, type ResourceTemplate } from "../api/mcp";
import { useAnswer } from "../api/reach";
import { Link, type Place } from "../router";
import { Icon } from "../ui/Icon";
import { PromptView, ResourceView, TemplateView } from "./views";
import "../styles/tools.css";

type ResourcesPlace = Extract<Place, { page: "resources" }>;

interface Listed<T> {
  items: readonly T[];
  next: string | null;
}

/** A list that is read page by page, as far as the person wants it. */
function useListed<T>(what: "resources" | "resourceTemplates" | "prompts"): {
  list: Listed<T> | null;
  error: string | null;
  more: () => void;
  again: () => void;
} {
  const first = useCallback(() => mcp.list(what, null), [what]);
  const { answer, error, again } = useAnswer(first, mcp.onChanged);
  const [rest, setRest] = useState<{ of: typeof answer; items: readonly unknown[]; next: string | null }>();
  const [failure, setFailure] = useState<string | null>(null);
  const read =
    rest !== undefined && rest.of === answer ? rest : { of: answer, items: [], next: answer?.next ?? null };
  const more = async (): Promise<void> => {
    try {
      const page = await mcp.list(what, read.next);
      setRest({ of: answer, items: [...read.items, ...page.items], next: page.next });
      setFailure(null);
    } catch (error) {
      setFailure(readable(error));
    }
  };
  const items = [...(answer?.items ?? []), ...read.items] as unknown as readonly T[];
  return {
    list: answer === null ? null : { items, next: read.next },
    error: error ?? failure,
    more: () => void more(),
    again: () => {
      setFailure(null);
      again();
    },
  };
}

export default function ResourcesPage({ place }: { place: ResourcesPlace }): ReactNode {
  const [text, setText] = useState("");
  const resources = useListed<Resource>("resources");
  const templates = useListed<ResourceTemplate>("resourceTemplates");
  const prompts = useListed<Prompt>("prompts");
  useEffect(() => {
    document.title = "Resources · midcall";
  }, []);
  const lists = [resources, templates, prompts];
  const error = lists.find((one) => one.error !== null)?.error ?? null;
  const isLoaded = lists.every((one) => one.list !== null);
  const isEmpty = isLoaded && lists.every((one) => one.list?.items.length === 0);
  const fits = ({
    name,
    title,
    description,
  }: {
    name: string;
    title?: string;
    description?: string;
  }): boolean =>
    `${name} ${title ?? ""} ${description ?? ""}`.toLowerCase().includes(text.trim().toLowerCase());

  const resource =
    resources.list?.items.find((one) => one.uri === place.uri) ?? unlisted(place.uri, isLoaded);
  const template = templates.list?.items.find((one) => one.uriTemplate === place.template);
  const prompt = prompts.list?.items.find((one) => one.name === place.prompt);
  const chosen = place.uri ?? place.template ?? place.prompt;
  return (
    <main className="tools" id="main" data-chosen={chosen !== null || undefined}>
      <div className="tools-side">
        <h1 className="sr-only">Resources and prompts</h1>
        <div className="search">
          <Icon name="search" />
          <label className="sr-only" htmlFor="resources-search">
            Search resources and prompts
          </label>
          <input
            id="resources-search"
            type="search"
            placeholder="Search resources and prompts"
            value={text}
            autoComplete="off"
            onChange={(event) => setText(event.target.value)}
          />
        </div>
        {error !== null && (
          <div className="banner banner-error" role="alert">
            <Icon name="alert" />
            <span>{error}</span>
            <button
              type="button"
              className="button button-small"
              onClick={() => {
                for (const one of lists) one.again();
              }}
            >
              Retry
            </button>
          </div>
        )}
        {!isLoaded && error === null && <p className="muted">Loading…</p>}
        {isEmpty && <p className="muted">This hub has no resources and no prompts.</p>}
        <nav aria-label="Resources and prompts">
          <Section title="Resources" of={resources} fits={fits}>
            {(one) => (
              <Entry
                key={one.uri}
                to={{ page: "resources", uri: one.uri, template: null, prompt: null }}
                current={one.uri === place.uri}
                name={one.title ?? one.name}
                about={one.description ?? one.uri}
              />
            )}
          </Section>
          <Section title="Templates" of={templates} fits={fits}>
            {(one) => (
              <Entry
                key={one.uriTemplate}
                to={{ page: "resources", uri: null, template: one.uriTemplate, prompt: null }}
                current={one.uriTemplate === place.template}
                name={one.title ?? one.name}
                about={one.description ?? one.uriTemplate}
              />
            )}
          </Section>
          <Section title="Prompts" of={prompts} fits={fits}>
            {(one) => (
              <Entry
                key={one.name}
                to={{ page: "resources", uri: null, template: null, prompt: one.name }}
                current={one.name === place.prompt}
                name={one.title ?? one.name}
                about={one.description ?? ""}
              />
            )}
          </Section>
        </nav>
      </div>
      <div className="tools-main">
        {resource !== undefined ? (
          <ResourceView key={resource.uri} resource={resource} />
        ) : template !== undefined ? (
          <TemplateView key={template.uriTemplate} template={template} />
        ) : prompt !== undefined ? (
          <PromptView key={prompt.name} prompt={prompt} />
        ) : chosen !== null && isLoaded ? (
          <p className="empty">There is no {chosen} here.</p>
        ) : (
          <div className="empty">
            <Icon name="book" />
            <p>Choose a resource to read it, or a prompt to fill it in.</p>
          </div>
        )}
      </div>
    </main>
  );
}

/** A resource that is in no list may be one of a template, or on a page that is not read yet. */
const unlisted = (uri: string | null, isLoaded: boolean): Resource | undefined =>
  uri !== null && isLoaded ? { uri, name: uri } : undefined;

function Section<T extends { name: string }>(props: {
  title: string;
  of: { list: Listed<T> | null; more: () => void };
  fits: (one: T) => boolean;
  children: (one: T) => ReactNode;
}): ReactNode {
  const { list, more } = props.of;
  const found = list?.items.filter(props.fits) ?? [];
  if (list === null || (found.length === 0 && list.next === null)) return null;
  return (
    <section className="namespace">
      <h2>{props.title}</h2>
      <ul>{found.map(props.children)}</ul>
      {list.next !== null && (
        <button type="button" className="button button-small" onClick={more}>
          Show more<span className="sr-only"> {props.title.toLowerCase()}</span>
        </button>
      )}
    </section>
  );
}

function Entry(props: { to: Place; current: boolean; name: string; about: string }): ReactNode {
  return (
    <li>
      <Link to={props.to} className="method-link" aria-current={props.current ? "page" : undefined}>
        <span className="method-name">{props.name}</span>
        <span className="method-about">{props.about.split("\n")[0]}</span>
      </Link>
    </li>
  );
}
