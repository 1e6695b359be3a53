/** The methods of a hub and of those nested in it, by their full names. */
import type { HubSchema, MethodSchema } from "../api/types";

export interface Namespace {
  name: string;
  description: string;
  methods: MethodSchema[];
}

export function namespacesOf(hub: HubSchema, prefix = ""): Namespace[] {
  const own = hub.activations.map(({ namespace, description, methods }) => ({
    name: prefix + namespace,
    description,
    methods: methods.map((method) => ({ ...method, name: prefix + method.name })),
  }));
  const nested = hub.hubs.flatMap((child) =>
    namespacesOf(child, `${prefix}${child.namespace ?? child.name}.`),
  );
  return [...own, ...nested];
}

/** Those that have all the words, in their name or in what is said of them. */
export function search(namespaces: Namespace[], text: string): Namespace[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = ({ name, description }: MethodSchema): boolean => {
    const all = `${name} ${description}`.toLowerCase();
    return words.every((word) => all.includes(word));
  };
  return namespaces
    .map((one) => ({ ...one, methods: one.methods.filter(fits) }))
    .filter((one) => one.methods.length > 0);
}
