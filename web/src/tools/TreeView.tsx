/**
 * A tree as a drawing: what follows one by one is a thread on one line, and where it parts, each branch can be closed.
 * So a long conversation does not walk off to the right.
 */
import { type ReactNode, useState } from "react";
import { Icon } from "../ui/Icon";
import { type Tree, type TreeNode, threadFrom } from "./tree";

/** Nodes of a thread, and branches, that are shown at once. */
const AT_ONCE = 100;
/** Levels of branches that are open at first. */
const OPEN = 3;
/** Characters of a text that are shown before it is opened. */
const SHORT = 200;

export function TreeView({ tree }: { tree: Tree }): ReactNode {
  const count = `${tree.nodes.size}${tree.hasMore ? " of more" : ""} ${tree.nodes.size === 1 ? "node" : "nodes"}`;
  return (
    <section className="tree" aria-label={`Tree ${tree.id}`}>
      <p className="tree-about">
        <code>{tree.id}</code> <span className="badge">{tree.state}</span> {count}
      </p>
      <ThreadView tree={tree} id={tree.root} depth={0} />
    </section>
  );
}

function ThreadView({ tree, id, depth }: { tree: Tree; id: string; depth: number }): ReactNode {
  const { nodes, branches } = threadFrom(tree, id);
  const [most, setMost] = useState(AT_ONCE);
  const left = nodes.length - most;
  const leftBranches = branches.length - Math.max(0, most - nodes.length);
  return (
    <ol className="tree-thread">
      {nodes.slice(0, most).map((node) => (
        <NodeView key={node.id} node={node} tree={tree} />
      ))}
      {left <= 0 &&
        branches
          .slice(0, most - nodes.length)
          .map((branch) => <BranchView key={branch} tree={tree} id={branch} depth={depth + 1} />)}
      {Math.max(left, leftBranches) > 0 && (
        <li>
          <button type="button" className="button button-small" onClick={() => setMost(most + AT_ONCE)}>
            Show more
          </button>
        </li>
      )}
    </ol>
  );
}

function BranchView({ tree, id, depth }: { tree: Tree; id: string; depth: number }): ReactNode {
  const [isOpen, setOpen] = useState(depth <= OPEN);
  const first = tree.nodes.get(id);
  return (
    <li>
      <details className="tree-branch" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>
          <Icon name="chevron" /> {isOpen ? "Branch" : short(first?.text ?? id)}
        </summary>
        {isOpen && <ThreadView tree={tree} id={id} depth={depth} />}
      </details>
    </li>
  );
}

function NodeView({ node, tree }: { node: TreeNode; tree: Tree }): ReactNode {
  const isRoot = node.id === tree.root && node.text === "";
  const text = isRoot ? "." : node.text;
  const missing = node.hasMore || node.children.some((one) => !tree.nodes.has(one));
  return (
    <li className="tree-node" data-kind={node.kind}>
      {node.role !== null && <span className="badge">{node.role}</span>}
      {text.length <= SHORT ? (
        <span className="tree-text">{text}</span>
      ) : (
        <details className="tree-text">
          <summary>{short(text)}</summary>
          {text}
        </details>
      )}
      {missing && <span className="muted"> (has more below)</span>}
    </li>
  );
}

const short = (text: string): string => {
  const line = text.replace(/\s+/g, " ");
  return line.length <= 80 ? line : `${line.slice(0, 77)}…`;
};
