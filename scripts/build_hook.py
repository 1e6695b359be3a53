"""Builds the web client into wheels and source distributions, unless the page that is there is up to date.

The repository and source distributions carry the built page, so that no Node.js is needed to install midcall.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WebClientHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs `scripts/web.py build`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # `make web` builds it where it is served from
        script = Path(self.root) / "scripts" / "web.py"
        spec = importlib.util.spec_from_file_location("midcall_web_build", script)
        assert spec is not None and spec.loader is not None
        web = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = web
        spec.loader.exec_module(web)
        try:
            web.build()
        except web.NoNode as error:
            self.app.display_warning(f"{error}: the package has a page that is not of these sources, or none")
