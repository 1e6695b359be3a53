/** Lines of a response, one JSON value each, as they come. */

export async function* readLines<T>(
  body: ReadableStream<Uint8Array>,
  signal?: AbortSignal,
): AsyncGenerator<T> {
  const reader = body
    .pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>)
    .getReader();
  const stop = (): void => void reader.cancel().catch(() => {});
  signal?.addEventListener("abort", stop, { once: true });
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) if (line.trim()) yield JSON.parse(line) as T;
    }
    signal?.throwIfAborted();
    // A last line without its end was cut: it comes again, whole, on the next line.
  } finally {
    signal?.removeEventListener("abort", stop);
    stop();
  }
}
