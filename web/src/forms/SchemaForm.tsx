/**
 * A form for any JSON Schema, with raw JSON as the other way to fill it. It holds the values; whoever
 * shows it gets them when they are sent, and fit.
 */
import { type FormEvent, type ReactNode, useId, useMemo, useRef, useState } from "react";
import type { Schema } from "../api/types";
import { isBounded } from "./bounds";
import { check, type Fault } from "./check";
import { FormContext, type FormState } from "./context";
import { Field } from "./Field";
import { Properties } from "./groups";
import { JsonField } from "./inputs";
import { initial, kindOf, resolve, Unreadable } from "./schema";

export interface SchemaFormProps {
  schema: Schema;
  onSubmit: (value: unknown) => void;
  /** The buttons at the end; one of them sends the form. */
  actions: ReactNode;
  disabled?: boolean;
  /** What the server found wrong. */
  faults?: readonly Fault[];
  /** What is asked stands above the form: the label of a single field is only for those who hear it. */
  quiet?: boolean;
  /** Whether the form can be filled as raw JSON too. */
  raw?: boolean;
  children?: ReactNode;
}

export function SchemaForm(props: SchemaFormProps): ReactNode {
  const { disabled = false } = props;
  const root = useMemo<Schema>(() => (isBounded(props.schema) ? props.schema : {}), [props.schema]);
  const id = useId();
  const form = useRef<HTMLFormElement>(null);
  const own = useMemo(() => resolve(root, root), [root]);
  const kind = useMemo(() => kindOf(own, root), [own, root]);
  const [value, setValue] = useState<unknown>(() => initial(root, root, true));
  const [tried, setTried] = useState(false);
  const [isRaw, setRaw] = useState(kind.is === "any");

  const found = useMemo(() => (tried ? check(root, root, value) : []), [tried, root, value]);
  const faults = useMemo(() => {
    const first = new Map<string, string>();
    for (const { path, message } of [...(props.faults ?? []), ...found]) {
      if (!first.has(path)) first.set(path, message);
    }
    return first;
  }, [found, props.faults]);
  const state = useMemo<FormState>(() => ({ root, faults, id, disabled }), [root, faults, id, disabled]);

  const submit = (event: FormEvent): void => {
    event.preventDefault();
    if (disabled) return;
    setTried(true);
    if (check(root, root, value).length === 0) {
      props.onSubmit(value);
      return;
    }
    requestAnimationFrame(() => form.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
  };

  const single = kind.is === "object" && kind.properties.length === 1 && props.quiet === true;
  const whole = {
    schema: own,
    value,
    onChange: setValue,
    path: "",
    label: own.title ?? "Value",
    required: true,
  };
  const hasFields = kind.is !== "object" || kind.properties.length > 0;
  return (
    <FormContext value={state}>
      <form ref={form} className="form" onSubmit={submit} noValidate>
        {isRaw ? (
          <JsonField {...whole} label="JSON" schema={{ description: "The whole value as JSON" }} />
        ) : kind.is === "object" ? (
          <Properties
            kind={kind}
            value={value}
            onChange={setValue}
            path=""
            {...(single ? { quiet: true } : {})}
          />
        ) : (
          <Field {...whole} quiet={props.quiet === true} />
        )}
        {isRaw &&
          found.map(
            ({ path, message }) =>
              path !== "" && (
                <p className="field-fault" key={path} role="alert">
                  {path}: {message}
                </p>
              ),
          )}
        {props.children}
        <div className="form-actions">
          {props.actions}
          {props.raw && hasFields && kind.is !== "any" && (
            <button
              type="button"
              className="button button-quiet form-raw"
              aria-pressed={isRaw}
              disabled={disabled || value instanceof Unreadable}
              onClick={() => setRaw(!isRaw)}
            >
              {isRaw ? "Use the form" : "Edit as JSON"}
            </button>
          )}
        </div>
      </form>
    </FormContext>
  );
}
