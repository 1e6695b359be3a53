# midcall with PostgreSQL and metrics. Mount an application at /app, or copy it there in an image of your own:
#   FROM midcall
#   COPY app.py /app/
FROM python:3.13-slim

COPY . /usr/src/midcall
RUN pip install --no-cache-dir '/usr/src/midcall[postgres,metrics]' \
    && rm -r /usr/src/midcall \
    && useradd --create-home midcall \
    && install -d -o midcall /app /var/lib/midcall
# The journal, unless MIDCALL_JOURNAL names another place: mount a volume here, so that it outlives the container.
ENV MIDCALL_STATE=/var/lib/midcall
USER midcall
WORKDIR /app
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
# An address that others can reach is refused without keys: set MIDCALL_TOKENS.
ENTRYPOINT ["midcall"]
CMD ["serve", "app:hub", "--host", "0.0.0.0"]
