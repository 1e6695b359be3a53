/** A modal dialog of the browser's own: it holds the focus, and gives it back. */
import { type ReactNode, useEffect, useId, useRef } from "react";

export function Dialog(props: {
  title: string;
  children: ReactNode;
  /** Called on Escape; without it the dialog stays. */
  onClose?: () => void;
  className?: string;
}): ReactNode {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  const { onClose } = props;
  useEffect(() => {
    const element = dialog.current;
    const before = document.activeElement;
    element?.showModal();
    return () => {
      element?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      className={`dialog ${props.className ?? ""}`}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose?.();
      }}
    >
      <h2 id={id}>{props.title}</h2>
      {props.children}
    </dialog>
  );
}
