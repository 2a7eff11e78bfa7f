"""Files as an NFS client shows them: what it has seen of a folder it shows for its attribute life.

What the client does itself goes to the server at once and renews its view of the folders it
touched, as a client's own changes do. Opening a file asks the server (close-to-open).
"""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from builders.mortal_files import MortalFiles


def immortal() -> NoReturn:
    raise AssertionError("nobody dies here")


class StaleFiles(MortalFiles):
    """One client's view, on a clock of the test's. Nothing is synchronised."""

    def __init__(self, clock: Callable[[], float], life_s: float) -> None:
        super().__init__(immortal)
        self._clock, self._life_s = clock, life_s
        self._views: dict[Path, tuple[float, list[str]]] = {}

    def visible_at(self, folder: Path) -> float:
        """When this client could see first what another has put into a folder now."""
        view = self._views.get(folder)
        now_s = self._clock()
        return now_s if view is None else max(now_s, view[0] + self._life_s)

    def _view(self, folder: Path) -> list[str]:
        view = self._views.get(folder)
        if view is None or self._clock() >= view[0] + self._life_s:
            view = (self._clock(), super().names(folder))
            self._views[folder] = view
        return view[1]

    def names(self, folder: Path) -> list[str]:
        return list(self._view(folder))

    def exists(self, path: Path) -> bool:
        return path.name in self._view(path.parent)

    def _renew(self, *paths: Path) -> None:
        for path in paths:
            self._views.pop(path.parent, None)

    def write_new(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        self._renew(path)
        super().write_new(path, data, durable=durable)

    def rename(self, source: Path, target: Path) -> None:
        self._renew(source, target)
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._renew(source, target)
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._renew(path)
        super().unlink(path)
