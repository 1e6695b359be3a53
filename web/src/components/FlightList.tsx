/** Flights to choose from, as cards. Responds with `{"flightId": id}`. */
import { type KeyboardEvent, type ReactNode, useId, useRef, useState } from "react";
import { Icon } from "../ui/Icon";
import type { ComponentProps } from "./registry";

export interface Flight {
  id: string;
  airline: string;
  number: string;
  departure: string;
  arrival: string;
  duration?: string | number | null;
  price: number | string;
  currency?: string | null;
  stops?: number | null;
}

interface Props {
  flights?: Flight[];
  message?: string;
}

export function FlightList({
  props,
  respond,
  decline,
  disabled,
}: ComponentProps<Props, { flightId: string }>): ReactNode {
  const { flights = [], message } = props;
  const [chosen, setChosen] = useState<string | null>(null);
  const list = useRef<HTMLUListElement>(null);
  const id = useId();
  const choose = (flight: Flight): void => {
    setChosen(flight.id);
    respond({ flightId: flight.id });
  };
  const move = (event: KeyboardEvent): void => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...(list.current?.querySelectorAll("button") ?? [])];
    const now = buttons.indexOf(event.target as HTMLButtonElement);
    if (step === undefined || now < 0) return;
    event.preventDefault();
    buttons[(now + step + buttons.length) % buttons.length]?.focus();
  };
  return (
    <section className="flights" aria-labelledby={id}>
      <h3 className="component-title" id={id}>
        <Icon name="plane" />
        {message || "Select your flight"}
      </h3>
      {flights.length === 0 && (
        <p className="muted">
          There are no flights.{" "}
          <button type="button" className="button button-small" onClick={decline} disabled={disabled}>
            Go on without
          </button>
        </p>
      )}
      <ul ref={list} className="flight-cards" onKeyDown={move}>
        {flights.map((flight) => (
          <li key={flight.id} className="flight" data-chosen={chosen === flight.id || undefined}>
            <div className="flight-airline">
              <span className="flight-mark">
                <Icon name="plane" />
              </span>
              <span>
                <span className="flight-name">{flight.airline}</span>
                <span className="flight-number">{flight.number}</span>
              </span>
            </div>
            <div className="flight-times">
              <time>{timeOf(flight.departure)}</time>
              <span className="flight-way">
                <span className="flight-duration">{durationOf(flight)}</span>
                <span className="flight-line" />
                <span className="flight-stops">{stopsOf(flight.stops)}</span>
              </span>
              <time>{timeOf(flight.arrival)}</time>
            </div>
            <div className="flight-choose">
              <span className="flight-price">{priceOf(flight)}</span>
              <button
                type="button"
                className="button button-soft"
                disabled={disabled}
                aria-label={`Select ${flight.airline} ${flight.number}, ${timeOf(flight.departure)} to ${timeOf(flight.arrival)}, ${priceOf(flight)}`}
                onClick={() => choose(flight)}
              >
                Select
              </button>
            </div>
          </li>
        ))}
      </ul>
    </section>
  );
}

export function priceOf({ price, currency }: Pick<Flight, "price" | "currency">): string {
  if (typeof price !== "number") return price;
  try {
    const digits = Number.isInteger(price) ? 0 : 2;
    return new Intl.NumberFormat(undefined, {
      style: "currency",
      currency: currency || "USD",
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    }).format(price);
  } catch {
    return `${price} ${currency}`; // not a currency that the browser knows
  }
}

/** `08:00` as it is, and of a date with a time the time: the airport's own, as it is written. */
export const timeOf = (text: string): string => /T(\d{2}:\d{2})/.exec(text)?.[1] ?? text;

function durationOf({ duration }: Flight): string {
  if (typeof duration === "number") return `${Math.floor(duration / 60)} h ${duration % 60} min`;
  return duration ?? "";
}

function stopsOf(stops: number | null | undefined): string {
  if (stops === null || stops === undefined) return "";
  return stops === 0 ? "Direct" : `${stops} ${stops === 1 ? "stop" : "stops"}`;
}
