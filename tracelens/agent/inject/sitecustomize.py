"""Put on the job's PYTHONPATH by ``tracelens record``: waits for torch to be imported, then loads the agent.

A process that never imports torch pays for one finder and one marker file. The user's own sitecustomize,
which this one shadows, is found and run; this folder is taken off ``sys.path`` again.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
# Without typing and annotations: every Python process of the job runs this file.

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Loader:
    """Runs torch's own loader, then hands over to the agent; every other attribute is the own loader's."""

    def __init__(self, spec, loader, finder):
        self._spec = spec
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._spec.loader = self._loader
        module.__loader__ = self._loader
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._loader.exec_module(module)
        _arm()


class _Finder:
    """Finds torch with the finders behind it, and wraps its loader."""

    busy = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.busy:
            return None
        self.busy = True
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                if finder is self or find is None:
                    continue
                spec = find(name, path, target)
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec, spec.loader, self)
                    return spec
        finally:
            self.busy = False
        return None


def _load():
    """The agent's package, under a name that cannot meet one of the job's."""
    import importlib.util

    name = "_tracelens_agent"
    if name not in sys.modules:
        folder = os.path.dirname(_HERE)
        spec = importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        if spec is None or spec.loader is None:
            raise ImportError("the agent's files are gone from " + folder)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return importlib.import_module(name + ".arm")


def _arm():
    """The job goes on whatever happens here; only a rejected --set may stop it (SystemExit)."""
    try:
        _load().arm()
    except Exception as error:
        sys.stderr.write(
            "tracelens: recording is off in process %d, the job goes on: %s: %s\n"
            % (os.getpid(), type(error).__name__, error)
        )


def _mark(bundle):
    """Leave a sign that a Python process saw this file, for the message when no agent starts."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
    try:  # noqa: SIM105  (contextlib would be one more import in every process)
        os.close(os.open(os.path.join(bundle, ".python-seen"), flags, 0o644))
    except OSError:  # an unwritable bundle is the launcher's to report
        pass


def _chain():
    """Run the sitecustomize that this file shadows, under its own name, as if this one were not there."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE or not entry]
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec = None if find is None else find("sitecustomize", None)
        if spec is None or spec.loader is None:
            continue
        if spec.origin and os.path.abspath(spec.origin) == os.path.abspath(__file__):
            continue
        module = type(sys)("sitecustomize")
        module.__spec__ = spec
        module.__loader__ = spec.loader
        if spec.origin:
            module.__file__ = spec.origin
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
        return


def _start():
    bundle = os.environ.get("TRACELENS_BUNDLE")
    if bundle:
        _mark(bundle)
        if "torch" in sys.modules:
            _arm()
        else:
            sys.meta_path.insert(0, _Finder())


_start()
_chain()
