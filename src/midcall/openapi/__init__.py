"""OpenAPI documents as methods of a hub (`Hub.from_openapi`).

A document is a stranger's, and so are the arguments of a call and what the API answers. The document is read
once, within bounds, into plain operations; each of them is a method whose request is built from checked
arguments, sent with the credentials of the hub's author alone, and kept as a step.

    document.py    a document: where it comes from, its references, its schemas as JSON Schema
    operations.py  what can be called: names, parameters, bodies, results
    send.py        arguments to a request: paths, queries, headers, cookies, bodies
    methods.py     operations as methods: confirmed, sent once, answered with data or a clear error
"""
