/**
 * The components that a question can be shown with. A plugin on the server names one
 * (`ctx.render("FlightList", ...)`), and the page looks it up here.
 *
 * Those of other authors come in modules that the server lists. They use `window.midcall`, which has the
 * React of this page, so that there is only one:
 *
 *     const { React, register } = window.midcall;
 *     register("Rating", ({ props, respond, disabled }) => ...);
 */
import * as React from "react";
import { get } from "../api/http";
import { at } from "../base";

export interface ComponentProps<P = Record<string, unknown>, R = unknown> {
  /** What the plugin gave to `ctx.render`. */
  props: P;
  /** Answer the question; to be called once. */
  respond: (value: R) => void;
  /** Refuse to answer. */
  decline: () => void;
  /** The answer is on its way, or the question is no longer open. */
  disabled: boolean;
}

export type QuestionComponent = React.ComponentType<ComponentProps>;

const components = new Map<string, QuestionComponent>();
const listeners = new Set<() => void>();
let loading = true;

/** Add a component under the name that plugins use; a later one takes the place of an earlier one. */
export function registerComponent<P, R>(
  name: string,
  component: React.ComponentType<ComponentProps<P, R>>,
): void {
  if (
    typeof name !== "string" ||
    name === "" ||
    (typeof component !== "function" && typeof component !== "object")
  ) {
    throw new TypeError("registerComponent(name, component) takes a name and a React component");
  }
  components.set(name, component as unknown as QuestionComponent);
  changed();
}

function changed(): void {
  for (const listener of listeners) listener();
}

const subscribe = (listener: () => void): (() => void) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};

/** A component by its name; null while modules are loading, nothing if there is none. */
export function useComponent(name: string | undefined): QuestionComponent | null | undefined {
  return React.useSyncExternalStore(subscribe, () => {
    if (name === undefined) return undefined;
    return components.get(name) ?? (loading ? null : undefined);
  });
}

export interface Midcall {
  React: typeof React;
  register: typeof registerComponent;
}

declare global {
  interface Window {
    midcall: Midcall;
  }
}

/** Let other authors' modules in, and load those that the server lists. */
export async function loadModules(): Promise<void> {
  window.midcall = Object.freeze({ React, register: registerComponent });
  try {
    const { modules } = await get<{ modules: string[] }>("web-modules.json");
    const loaded = await Promise.allSettled(modules.map((path) => import(/* @vite-ignore */ at(path))));
    loaded.forEach((one, n) => {
      if (one.status === "rejected") console.error(`The module ${modules[n]} failed:`, one.reason);
    });
  } catch (error) {
    console.error("The list of modules could not be read:", error);
  } finally {
    loading = false;
    changed();
  }
}
