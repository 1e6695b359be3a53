/** Where the page is mounted, with a slash at its end. The bundle lies in `{BASE}assets/`. */
export const BASE = import.meta.env.DEV ? "/" : new URL(/* @vite-ignore */ "..", import.meta.url).pathname;

/** Whether this hub has a page that others do not have. */
export const hasPage = (name: string): boolean =>
  import.meta.env.DEV || (document.documentElement.dataset.pages ?? "").split(" ").includes(name);

/** The address of a path of this server, as `at("chat")`. */
export const at = (path: string): string => BASE + path;
