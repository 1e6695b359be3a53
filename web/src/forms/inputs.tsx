/** Fields with one control: text, numbers, yes or no, choices, and JSON for all that has no form. */
import { type ReactNode, useId, useState } from "react";
import { same } from "./check";
import { emptied, type FieldProps, useForm, useIds } from "./context";
import { Group, Labelled } from "./Field";
import { type Choice, numberIn, textOf, Unreadable } from "./schema";

const INPUT_TYPES: Record<string, string> = {
  email: "email",
  date: "date",
  time: "time",
  password: "password",
};
const EXAMPLES: Record<string, string> = { duration: "PT1H30M" };
const FEW = 6;

/** A decimal is a text too: so it keeps the digits that the person wrote. */
export function TextField(props: FieldProps & { decimal?: boolean }): ReactNode {
  const { disabled, faults } = useForm();
  const { schema, value, path } = props;
  const text = typeof value === "string" || typeof value === "number" ? String(value) : "";
  const long = (schema.maxLength ?? 0) > 200 || schema.format === "textarea" || text.includes("\n");
  const onText = (given: string): void => {
    const text = props.decimal ? given.trim() : given;
    props.onChange(text === "" ? undefined : text);
  };
  return (
    <Labelled of={props}>
      {({ id, describedBy }) => {
        const shared = {
          id,
          value: text,
          disabled,
          "aria-describedby": describedBy,
          "aria-invalid": faults.has(path) || undefined,
          "aria-required": props.required || undefined,
          placeholder: placeholder(schema.examples?.[0] ?? EXAMPLES[schema.format ?? ""]),
          spellCheck: false,
        };
        return long ? (
          <textarea {...shared} rows={4} onChange={(event) => onText(event.target.value)} />
        ) : (
          <input
            {...shared}
            {...(props.decimal ? { inputMode: "decimal", className: "input-short" } : {})}
            type={INPUT_TYPES[schema.format ?? ""] ?? "text"}
            autoComplete="off"
            onChange={(event) => onText(event.target.value)}
          />
        );
      }}
    </Labelled>
  );
}

/** A moment, in the time of whoever fills in the form; it is sent with its offset. */
export function MomentField(props: FieldProps): ReactNode {
  const { disabled, faults } = useForm();
  const { value, path } = props;
  const [text, setText] = useState(() => localMoment(value));
  const current = same(withOffset(text), value) ? text : localMoment(value);
  return (
    <Labelled of={props}>
      {({ id, describedBy }) => (
        <input
          id={id}
          type="datetime-local"
          className="input-short"
          step={1}
          value={current}
          disabled={disabled}
          aria-describedby={describedBy}
          aria-invalid={faults.has(path) || undefined}
          onChange={(event) => {
            setText(event.target.value);
            props.onChange(withOffset(event.target.value));
          }}
        />
      )}
    </Labelled>
  );
}

/** As such an input has it: `2030-12-31T10:00:00`; nothing if it is no moment. */
export function localMoment(value: unknown): string {
  const moment = typeof value === "string" ? new Date(value) : null;
  if (moment === null || Number.isNaN(moment.getTime())) return "";
  const local = new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000);
  return local.toISOString().slice(0, 19);
}

/** As RFC 3339 has it: `2030-12-31T10:00:00+01:00`. */
export function withOffset(local: string): string | undefined {
  const moment = new Date(local);
  if (local === "" || Number.isNaN(moment.getTime())) return undefined;
  const minutes = -moment.getTimezoneOffset();
  const two = (n: number): string => String(Math.floor(Math.abs(n))).padStart(2, "0");
  const whole = local.length === 16 ? `${local}:00` : local.slice(0, 19);
  return `${whole}${minutes < 0 ? "-" : "+"}${two(minutes / 60)}:${two(minutes % 60)}`;
}

const placeholder = (example: unknown): string | undefined =>
  typeof example === "string" ? example : undefined;

export function NumberField(props: FieldProps & { whole: boolean }): ReactNode {
  const { disabled, faults } = useForm();
  const { value, path, schema } = props;
  const shown = value instanceof Unreadable ? value.text : typeof value === "number" ? String(value) : "";
  const [text, setText] = useState(shown);
  // What was typed stays as it was typed ("1." on the way to "1.5"), until another value comes from outside.
  const current = same(readNumber(text), value) || text === shown ? text : shown;
  const range = [schema.minimum, schema.maximum].every((end) => end !== undefined)
    ? `${schema.minimum} to ${schema.maximum}`
    : undefined;
  return (
    <Labelled of={props}>
      {({ id, describedBy }) => (
        <input
          id={id}
          type="text"
          inputMode={props.whole ? "numeric" : "decimal"}
          className="input-short"
          value={current}
          disabled={disabled}
          placeholder={range}
          autoComplete="off"
          aria-describedby={describedBy}
          aria-invalid={faults.has(path) || undefined}
          aria-required={props.required || undefined}
          onChange={(event) => {
            setText(event.target.value);
            props.onChange(readNumber(event.target.value));
          }}
        />
      )}
    </Labelled>
  );
}

function readNumber(text: string): number | Unreadable | undefined {
  if (text.trim() === "") return undefined;
  return numberIn(text) ?? new Unreadable(text, "Must be a number");
}

export function BooleanField(props: FieldProps): ReactNode {
  const { disabled } = useForm();
  if (!props.required && typeof props.schema.default !== "boolean") {
    // Left out is not the same as no.
    const choices = [
      { value: true, label: "Yes" },
      { value: false, label: "No" },
    ];
    return <ChoiceField {...props} choices={choices} />;
  }
  return (
    <Labelled of={props} inline>
      {({ id, describedBy }) => (
        <input
          id={id}
          type="checkbox"
          checked={props.value === true}
          disabled={disabled}
          aria-describedby={describedBy}
          onChange={(event) => props.onChange(event.target.checked)}
        />
      )}
    </Labelled>
  );
}

export function ChoiceField(props: FieldProps & { choices: Choice[] }): ReactNode {
  const { disabled, faults } = useForm();
  const name = useId();
  const { choices, value, path } = props;
  if (choices.length <= FEW && (props.required || choices.some((choice) => choice.description))) {
    return (
      <Group of={props} className="choices">
        {!props.required && (
          <Option choice={{ value: undefined, label: "Not set" }}>
            <input
              type="radio"
              name={name}
              checked={!choices.some((choice) => same(choice.value, value))}
              disabled={disabled}
              onChange={() => props.onChange(undefined)}
            />
          </Option>
        )}
        {choices.map((choice) => (
          <Option key={textOf(choice.value)} choice={choice}>
            <input
              type="radio"
              name={name}
              checked={same(choice.value, value)}
              disabled={disabled}
              onChange={() => props.onChange(choice.value)}
            />
          </Option>
        ))}
      </Group>
    );
  }
  return (
    <Labelled of={props}>
      {({ id, describedBy }) => (
        <select
          id={id}
          value={choices.findIndex((choice) => same(choice.value, value))}
          disabled={disabled}
          aria-describedby={describedBy}
          aria-invalid={faults.has(path) || undefined}
          aria-required={props.required || undefined}
          onChange={(event) => props.onChange(choices[Number(event.target.value)]?.value)}
        >
          <option value={-1}>{props.required ? "Choose…" : "Not set"}</option>
          {choices.map((choice, n) => (
            <option key={textOf(choice.value)} value={n}>
              {choice.label}
            </option>
          ))}
        </select>
      )}
    </Labelled>
  );
}

export function ChoicesField(props: FieldProps & { choices: Choice[] }): ReactNode {
  const { disabled } = useForm();
  const chosen = Array.isArray(props.value) ? props.value : [];
  const isChosen = (choice: Choice): boolean => chosen.some((one) => same(one, choice.value));
  const toggle = (choice: Choice): void => {
    // In the order of the options, not in that of the clicks.
    const next = props.choices.filter((one) => isChosen(one) !== (one === choice));
    const values = next.map((one) => one.value);
    props.onChange(values.length ? values : emptied(props, values));
  };
  return (
    <Group of={props} className="choices">
      {props.choices.map((choice) => (
        <Option key={textOf(choice.value)} choice={choice}>
          <input
            type="checkbox"
            checked={isChosen(choice)}
            disabled={disabled}
            onChange={() => toggle(choice)}
          />
        </Option>
      ))}
    </Group>
  );
}

function Option({ choice, children }: { choice: Choice; children: ReactNode }): ReactNode {
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the control is among the children
    <label className="choice">
      {children}
      <span>
        <span className="choice-label">{choice.label}</span>
        {choice.description && <span className="choice-description">{choice.description}</span>}
      </span>
    </label>
  );
}

export function JsonField(props: FieldProps): ReactNode {
  const { disabled, faults } = useForm();
  const { value, path } = props;
  const [text, setText] = useState(() =>
    value instanceof Unreadable ? value.text : value === undefined ? "" : JSON.stringify(value, null, 2),
  );
  const ids = useIds(path, true);
  return (
    <Labelled of={{ ...props, schema: { description: "Any JSON value", ...props.schema } }}>
      {({ id }) => (
        <textarea
          id={id}
          className="mono"
          rows={Math.min(16, Math.max(3, text.split("\n").length))}
          value={text}
          disabled={disabled}
          spellCheck={false}
          aria-describedby={ids.describedBy}
          aria-invalid={faults.has(path) || undefined}
          aria-required={props.required || undefined}
          onChange={(event) => {
            setText(event.target.value);
            props.onChange(readJson(event.target.value));
          }}
        />
      )}
    </Labelled>
  );
}

export function readJson(text: string): unknown {
  if (text.trim() === "") return undefined;
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    return new Unreadable(text, `Not JSON: ${error instanceof Error ? error.message : "?"}`);
  }
}
