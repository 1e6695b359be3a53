/** Fields with fields inside: objects, maps, lists, tuples, and values of one of several kinds. */
import { type ReactNode, useRef, useState } from "react";
import type { Schema } from "../api/types";
import { Icon } from "../ui/Icon";
import { check, join } from "./check";
import { emptied, type FieldProps, useForm } from "./context";
import { Field, Group } from "./Field";
import { humanName, initial, isObject, type Kind, variantName } from "./schema";

/** The fields of an object, without a frame: what a form as a whole consists of. */
export function Properties(props: {
  kind: Extract<Kind, { is: "object" }>;
  value: unknown;
  onChange: (value: unknown) => void;
  path: string;
  quiet?: boolean;
}): ReactNode {
  const value = isObject(props.value) ? props.value : {};
  const set = (name: string, one: unknown): void => {
    const { [name]: _, ...rest } = value;
    props.onChange(one === undefined ? rest : { ...rest, [name]: one });
  };
  return props.kind.properties.map(([name, schema]) => (
    <Field
      key={name}
      schema={schema}
      value={value[name]}
      onChange={(one) => set(name, one)}
      path={join(props.path, name)}
      label={schema.title ?? humanName(name)}
      required={props.kind.required.has(name)}
      {...(props.quiet ? { quiet: true } : {})}
    />
  ));
}

export function ObjectField(props: FieldProps & { kind: Extract<Kind, { is: "object" }> }): ReactNode {
  if (props.value === undefined || props.value === null) return <Absent {...props} />;
  return (
    <Group of={props} className="nested">
      <Properties kind={props.kind} value={props.value} onChange={props.onChange} path={props.path} />
      {!props.required && <LeaveOut label={props.label} onClick={() => props.onChange(undefined)} />}
    </Group>
  );
}

/** An optional part that is left out, and can be put in. */
function Absent(props: FieldProps): ReactNode {
  const { root } = useForm();
  const { default: given, ...rest } = props.schema;
  const begun = (): unknown => initial(given == null ? rest : props.schema, root, true);
  return (
    <Group of={props}>
      <Add label={`Add ${props.label}`} onClick={() => props.onChange(begun())} />
    </Group>
  );
}

export function ListField(props: FieldProps & { items: Schema }): ReactNode {
  const { root } = useForm();
  const list = Array.isArray(props.value) ? props.value : [];
  // Entries keep their identity when one before them is removed.
  const keys = useRef<number[]>([]);
  const nextKey = useRef(0);
  while (keys.current.length < list.length) keys.current.push(nextKey.current++);
  keys.current.length = list.length;
  const set = (next: unknown[]): void => props.onChange(next.length ? next : emptied(props, next));
  const remove = (n: number): void => {
    keys.current.splice(n, 1);
    set(list.filter((_, other) => other !== n));
  };
  return (
    <Group of={props} className="nested">
      {list.map((one, n) => (
        <div className="entry" key={keys.current[n]}>
          <Field
            schema={props.items}
            value={one}
            onChange={(value) => set(list.map((old, other) => (other === n ? value : old)))}
            path={join(props.path, n)}
            label={`${props.label} ${n + 1}`}
            required
            quiet
          />
          <Remove label={`Remove ${props.label} ${n + 1}`} onClick={() => remove(n)} />
        </div>
      ))}
      <Add label={`Add to ${props.label}`} onClick={() => set([...list, initial(props.items, root, true)])} />
    </Group>
  );
}

export function TupleField(props: FieldProps & { items: Schema[] }): ReactNode {
  if (!Array.isArray(props.value)) return <Absent {...props} />;
  const list = props.value as unknown[];
  return (
    <Group of={props} className="nested">
      {props.items.map((item, n) => (
        <Field
          // biome-ignore lint/suspicious/noArrayIndexKey: a place of a tuple is what it is by its number
          key={n}
          schema={item}
          value={list[n]}
          onChange={(value) =>
            props.onChange(props.items.map((_, other) => (other === n ? value : list[other])))
          }
          path={join(props.path, n)}
          label={`${props.label} ${n + 1}`}
          required
        />
      ))}
      {!props.required && <LeaveOut label={props.label} onClick={() => props.onChange(undefined)} />}
    </Group>
  );
}

export function MapField(props: FieldProps & { values: Schema }): ReactNode {
  const { root, disabled } = useForm();
  const [name, setName] = useState("");
  const map = isObject(props.value) ? props.value : {};
  const set = (next: Record<string, unknown>): void =>
    props.onChange(Object.keys(next).length ? next : emptied(props, next));
  const add = (): void => {
    if (name && !(name in map)) set({ ...map, [name]: initial(props.values, root, true) });
    setName("");
  };
  return (
    <Group of={props} className="nested">
      {Object.entries(map).map(([key, one]) => (
        <div className="entry" key={key}>
          <Field
            schema={props.values}
            value={one}
            onChange={(value) => set({ ...map, [key]: value })}
            path={join(props.path, key)}
            label={key}
            required
          />
          <Remove
            label={`Remove ${key}`}
            onClick={() => set(Object.fromEntries(Object.entries(map).filter(([other]) => other !== key)))}
          />
        </div>
      ))}
      <div className="entry-new">
        <input
          type="text"
          aria-label={`New name in ${props.label}`}
          placeholder="Name"
          value={name}
          disabled={disabled}
          onChange={(event) => setName(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter") return;
            event.preventDefault();
            add();
          }}
        />
        <Add label={`Add to ${props.label}`} onClick={add} />
      </div>
    </Group>
  );
}

export function UnionField(props: FieldProps & { variants: Schema[] }): ReactNode {
  const { root, id, disabled } = useForm();
  const fitting = props.variants.findIndex((variant) => check(variant, root, props.value).length === 0);
  const isAbsent = props.value == null && !props.required;
  const [chosen, setChosen] = useState(isAbsent ? -1 : Math.max(0, fitting));
  const variant = props.variants[chosen];
  const select = `${id}-${props.path}-variant`;
  return (
    <Group of={props} className="nested" isOuter={variant !== undefined}>
      <div className="field">
        <label className="sr-only" htmlFor={select}>{`Kind of ${props.label}`}</label>
        <select
          id={select}
          value={chosen}
          disabled={disabled}
          onChange={(event) => {
            const next = Number(event.target.value);
            setChosen(next);
            const begun = props.variants[next];
            props.onChange(begun === undefined ? undefined : initial(begun, root, true));
          }}
        >
          {!props.required && <option value={-1}>Not set</option>}
          {props.variants.map((one, n) => (
            <option key={variantName(one, root, n)} value={n}>
              {variantName(one, root, n)}
            </option>
          ))}
        </select>
      </div>
      {variant !== undefined && <Field key={chosen} {...props} schema={variant} required quiet />}
    </Group>
  );
}

function Add({ label, onClick }: { label: string; onClick: () => void }): ReactNode {
  const { disabled } = useForm();
  return (
    <button
      type="button"
      className="button button-small"
      disabled={disabled}
      aria-label={label}
      onClick={onClick}
    >
      <Icon name="plus" /> Add
    </button>
  );
}

function LeaveOut({ label, onClick }: { label: string; onClick: () => void }): ReactNode {
  const { disabled } = useForm();
  return (
    <button type="button" className="button button-small" disabled={disabled} onClick={onClick}>
      Leave out<span className="sr-only"> {label}</span>
    </button>
  );
}

function Remove({ label, onClick }: { label: string; onClick: () => void }): ReactNode {
  const { disabled } = useForm();
  return (
    <button
      type="button"
      className="icon-button"
      disabled={disabled}
      aria-label={label}
      title={label}
      onClick={onClick}
    >
      <Icon name="cross" />
    </button>
  );
}
