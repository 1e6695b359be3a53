/** Where the person is: one of the pages, and what is open there. */
import { type AnchorHTMLAttributes, type ReactNode, useSyncExternalStore } from "react";
import { BASE } from "./base";

export type Place =
  | { page: "chat"; conversation: string | null }
  | { page: "tools"; method: string | null }
  | { page: "resources"; uri: string | null; template: string | null; prompt: string | null }
  | { page: "calls" }
  | { page: "unknown"; path: string }
  | { page: "question"; token: string }
  | { page: "machines"; machine: string | null; run: string | null };

const listeners = new Set<() => void>();

export function read(path: string, search: string): Place {
  const inside = path.startsWith(BASE) ? path.slice(BASE.length) : path.replace(/^\//, "");
  if (inside === "tools") return { page: "tools", method: new URLSearchParams(search).get("method") };
  if (inside === "calls") return { page: "calls" };
  if (inside === "resources") {
    const asked = new URLSearchParams(search);
    const [uri, template, prompt] = ["uri", "template", "prompt"].map((name) => asked.get(name));
    return { page: "resources", uri: uri ?? null, template: template ?? null, prompt: prompt ?? null };
  }
  if (inside === "machines") {
    const asked = new URLSearchParams(search);
    return { page: "machines", machine: asked.get("machine"), run: asked.get("run") };
  }
  const token = /^q\/([^/]+)$/.exec(inside)?.[1];
  if (token !== undefined) return { page: "question", token };
  const conversation = /^c\/([^/]+)$/.exec(inside)?.[1];
  if (conversation !== undefined) return { page: "chat", conversation: decoded(conversation) };
  return inside === "" ? { page: "chat", conversation: null } : { page: "unknown", path };
}

/** What somebody has typed may be no encoding of anything. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function write(place: Place): string {
  switch (place.page) {
    case "tools":
      return `${BASE}tools${place.method === null ? "" : `?method=${encodeURIComponent(place.method)}`}`;
    case "resources": {
      const { uri, template, prompt } = place;
      const asked = new URLSearchParams({
        ...(uri && { uri }),
        ...(template && { template }),
        ...(prompt && { prompt }),
      });
      return `${BASE}resources${asked.size > 0 ? `?${asked}` : ""}`;
    }
    case "calls":
      return `${BASE}calls`;
    case "unknown":
      return place.path;
    case "question":
      return `${BASE}q/${place.token}`;
    case "machines": {
      const { machine, run } = place;
      const asked = new URLSearchParams({ ...(machine && { machine }), ...(run && { run }) }).toString();
      return `${BASE}machines${asked && `?${asked}`}`;
    }
    case "chat":
      return place.conversation === null ? BASE : `${BASE}c/${encodeURIComponent(place.conversation)}`;
  }
}

export function go(place: Place, options: { replace?: boolean } = {}): void {
  const path = write(place);
  if (path === location.pathname + location.search) return;
  if (options.replace) history.replaceState(null, "", path);
  else history.pushState(null, "", path);
  for (const listener of listeners) listener();
}

const subscribe = (listener: () => void): (() => void) => {
  listeners.add(listener);
  window.addEventListener("popstate", listener);
  return () => {
    listeners.delete(listener);
    window.removeEventListener("popstate", listener);
  };
};

export function usePlace(): Place {
  const path = useSyncExternalStore(subscribe, () => location.pathname + location.search);
  const at = path.indexOf("?");
  return at < 0 ? read(path, "") : read(path.slice(0, at), path.slice(at));
}

type LinkProps = Omit<AnchorHTMLAttributes<HTMLAnchorElement>, "href"> & { to: Place; children: ReactNode };

export function Link({ to, children, onClick, ...rest }: LinkProps): ReactNode {
  return (
    <a
      {...rest}
      href={write(to)}
      onClick={(event) => {
        onClick?.(event);
        const isPlain =
          event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
        if (!isPlain || event.defaultPrevented) return;
        event.preventDefault();
        go(to);
      }}
    >
      {children}
    </a>
  );
}
