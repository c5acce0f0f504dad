"""A client of `telens mcp` that calls tools as an agent does, without a model."""

import contextlib
import json
import os
import sys

from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters, stdio_client


class Agent:
    def __init__(self, portal, client):
        self._portal = portal
        self._client = client

    def tools(self) -> dict:
        """Return the tools by name."""
        return {tool.name: tool for tool in self._portal.call(self._client.list_tools).tools}

    def text(self, tool: str, arguments: dict) -> tuple[str, bool]:
        """Return the text of an answer, and whether it is an error."""
        answer = self._portal.call(self._client.call_tool, tool, arguments)
        assert [part.type for part in answer.content] == ["text"]
        return answer.content[0].text, answer.is_error

    def ask(self, tool: str, **arguments) -> dict:
        """Return an answer. It must not be an error."""
        text, is_error = self.text(tool, arguments)
        assert not is_error, text
        return json.loads(text)

    def error(self, tool: str, **arguments) -> str:
        """Return the text of an answer that must be an error."""
        text, is_error = self.text(tool, arguments)
        assert is_error, text
        return text


@contextlib.contextmanager
def start_agent(command, *options, **environment):
    """Start `telens mcp` with this Python, and stop it at the end."""
    server = StdioServerParameters(
        command=str(command),
        args=["mcp", *options],
        env=os.environ | {"TELENS_PYTHON": sys.executable} | environment,
    )
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(stdio_client(server))) as client,
    ):
        yield Agent(portal, client)
