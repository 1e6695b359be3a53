"""Dialects: how questions and answers travel, one file for each way.

A dialect is the outlet of a call that an MCP request started. All of them have a reply in the making (see
`results.McpReply`); they differ in what they do with a question.
"""
