"""What was put in the place of something of the library's, and can be taken away again."""

from typing import Any

__all__ = ["Replaced"]

_NOTHING = object()  # it was inherited


class Replaced:
    """Attributes of classes and modules that are others for a while."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, other: Any) -> None:
        """Replace what is there: a place that is no more must be told, not filled in vain."""
        assert hasattr(owner, name), f"nothing to replace, the library has changed: {owner=} {name=}"
        self._before.append((owner, name, vars(owner).get(name, _NOTHING)))
        setattr(owner, name, other)

    def restore(self) -> None:
        """All is as it was."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
