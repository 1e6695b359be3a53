/** Requests to this server: with the key, if it wants one, and with errors that a person can read. */
import { at } from "../base";
import { keyring } from "./key";

/** The server answered, and said no. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    /** What does not fit, of a request for a run of a machine. */
    readonly details: readonly { path: string; message: string }[] = [],
  ) {
    super(message);
  }
}

/** No answer came: the server is down, or the line is. */
export class Unreachable extends Error {
  constructor() {
    super("The server cannot be reached.");
  }
}

export interface Options {
  method?: string;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** Not to ask the person for a key: who is refused is. */
  quiet?: boolean;
}

/** The response to a request, once it is a good one. Raises `Refused` or `Unreachable`. */
export async function request(path: string, options: Options = {}): Promise<Response> {
  while (true) {
    const key = keyring.value;
    const headers: Record<string, string> = { Accept: "application/json", ...options.headers };
    if (key !== null) headers.Authorization = `Bearer ${key}`;
    if (options.body !== undefined) headers["Content-Type"] = "application/json";
    let response: Response;
    try {
      response = await fetch(at(path), {
        method: options.method ?? "GET",
        headers,
        cache: "no-store",
        ...(options.body === undefined ? {} : { body: JSON.stringify(options.body) }),
        ...(options.signal === undefined ? {} : { signal: options.signal }),
      });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new Unreachable();
    }
    if (response.ok) return response;
    const refused = await readRefusal(response);
    if (response.status !== 401 || options.quiet) throw refused;
    await keyring.ask(key === null ? "This server asks who calls." : refused.message, key);
  }
}

/** The JSON that a path gives. */
export async function get<T>(path: string, options: Options = {}): Promise<T> {
  return (await (await request(path, options)).json()) as T;
}

async function readRefusal(response: Response): Promise<Refused> {
  try {
    type Details = Refused["details"];
    type Body = { error: string | { code: unknown; message: string }; details?: Details };
    const { error, details } = (await response.json()) as Body;
    if (typeof error === "string") return new Refused(response.status, "http_error", error, details);
    return new Refused(response.status, String(error.code), error.message);
  } catch {
    const text = `The server answered with ${response.status} ${response.statusText}`.trim();
    return new Refused(response.status, "http_error", `${text}.`);
  }
}

/** What to tell a person of any error. */
export function readable(error: unknown): string {
  return error instanceof Error && error.message ? error.message : "Something went wrong.";
}
