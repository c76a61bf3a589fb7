"""Look at results in a real JupyterLab: `make test-notebook`.

JupyterLab goes into an environment of its own (0.2 GB), whose kernel takes trtcal from this one.
"""

import subprocess
import sys
import sysconfig

from tests.docs.pages import ROOT

HOME = ROOT / ".venv-notebook"
SERVER = HOME / "bin" / "jupyter-lab"
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def prepare():
    """Make the environment if it is not there."""
    if SERVER.exists():
        return
    subprocess.run([sys.executable, "-m", "venv", HOME], check=True)
    python, ours = HOME / "bin" / "python", sysconfig.get_path("purelib")
    subprocess.run([python, *PIP, "jupyterlab"], check=True)
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs = subprocess.check_output([python, "-c", find], text=True).strip()
    with open(f"{theirs}/trtcal-here.pth", "w") as file:
        file.write(f"import site; site.addsitedir({ours!r})\n")


def main():
    """Prepare the environment and run the test; return its exit status."""
    prepare()
    test = "tests/browser/test_notebook.py"
    return subprocess.run([sys.executable, "-m", "pytest", "-rs", test, *sys.argv[1:]]).returncode


if __name__ == "__main__":
    sys.exit(main())
