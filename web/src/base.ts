/** Where the page is mounted, with a slash at its end. The bundle lies in `{BASE}assets/`. */
export const BASE = import.meta.env.DEV ? "/" : new URL(/* @vite-ignore */ "..", import.meta.url).pathname;

/** The address of a path of this server, as `at("chat")`. */
export const at = (path: string): string => BASE + path;
