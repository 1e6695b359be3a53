/** Trees as arbor gives them, whole or as a skeleton, and how they are walked through to be drawn. */
import { isObject } from "../forms/schema";

export interface TreeNode {
  id: string;
  children: string[];
  /** There are others than those. */
  hasMore: boolean;
  text: string;
  /** Who has said it, if somebody did. */
  role: string | null;
  kind: "text" | "external";
}

export interface Tree {
  id: string;
  root: string;
  state: string;
  nodes: ReadonlyMap<string, TreeNode>;
  /** There are other nodes than those. */
  hasMore: boolean;
}

const read = new WeakMap<object, Tree | null>();

/** The tree in an event, which is read once; null if there is none. */
export function treeIn(event: Record<string, unknown>): Tree | null {
  let tree = read.get(event);
  if (tree === undefined) {
    tree = readTree(event);
    read.set(event, tree);
  }
  return tree;
}

function readTree(event: Record<string, unknown>): Tree | null {
  const given = { tree_data: event.tree, tree_skeleton: event.skeleton }[String(event.type)];
  if (!isObject(given) || !isObject(given.nodes) || typeof given.root !== "string") return null;
  const nodes = new Map<string, TreeNode>();
  for (const [id, one] of Object.entries(given.nodes)) {
    if (isObject(one)) nodes.set(id, nodeOf(id, one));
  }
  if (!nodes.has(given.root)) return null;
  return {
    id: String(given.id),
    root: given.root,
    state: String(given.state),
    nodes,
    hasMore: given.next !== undefined,
  };
}

function nodeOf(id: string, given: Record<string, unknown>): TreeNode {
  const data = isObject(given.data) ? given.data : {};
  const role = isObject(given.metadata) ? given.metadata.role : null;
  const isExternal = data.type === "external" || given.node_type === "external";
  const handle = typeof data.handle === "string" ? data.handle : JSON.stringify(data.handle ?? id);
  return {
    id,
    children: Array.isArray(given.children)
      ? given.children.filter((one): one is string => typeof one === "string")
      : [],
    hasMore: given.more_children === true,
    text: isExternal ? handle : typeof data.content === "string" ? data.content : id,
    role: typeof role === "string" ? role : null,
    kind: isExternal ? "external" : "text",
  };
}

/** A node and those that follow it one by one; what the last of them leads to are its branches. */
export interface Thread {
  nodes: TreeNode[];
  branches: string[];
}

export function threadFrom(tree: Tree, id: string): Thread {
  const nodes: TreeNode[] = [];
  const seen = new Set<string>();
  let next: string | undefined = id;
  let branches: string[] = [];
  while (next !== undefined && !seen.has(next)) {
    const node = tree.nodes.get(next);
    if (node === undefined) break;
    seen.add(next);
    nodes.push(node);
    const children = node.children.filter((one) => tree.nodes.has(one) && !seen.has(one));
    next = children.length === 1 ? children[0] : undefined;
    branches = children.length > 1 ? children : [];
  }
  return { nodes, branches };
}
