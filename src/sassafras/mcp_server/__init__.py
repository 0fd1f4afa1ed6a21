"""A Model Context Protocol server: the public verbs as tools of a coding agent (``sassafras mcp``).

`server` needs the extra ``mcp``; `tools` and `worker` do not.
"""
