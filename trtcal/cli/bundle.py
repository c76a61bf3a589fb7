"""`trtcal bundle`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.advice import advise
from trtcal.cli.extended import ExtendedGroup
from trtcal.cli.options import (
    REDACT,
    DataOptions,
    JsonOptions,
    add_commands,
    argument,
    config_here,
    option,
)
from trtcal.cli.output import Columns, print_table, remark, say, say_written
from trtcal.cli.verify import KEY_VARIABLE
from trtcal.config import FILE, Config
from trtcal.errors import GateFailed, InputError

if TYPE_CHECKING:
    from trtcal.documents import Document
    from trtcal.runs.bundle.building import Bundle, Request
    from trtcal.runs.bundle.verifying import Result


@click.group(
    cls=ExtendedGroup,
    default="make",
    epilog="Example: trtcal bundle reports/digits --variant int8-percentile -o bundle/",
)
def command() -> None:
    """Make a bundle that a device can check, verify one, and see where it loads.

    `trtcal bundle RUN --variant NAME -o bundle/` is short for `trtcal bundle make RUN ...`.
    """


class Make(DataOptions, example="trtcal bundle reports/digits --variant int8-percentile -o bundle"):
    """Make a bundle of one variant of RUN, sign it, and verify it.

    A bundle has the engines, the quantized model, golden inputs with their outputs, and the
    report. The golden inputs come from the data that the run was judged on: --data, else the data
    that trtcal.toml names.
    """

    run: Path = argument()
    variant: str | None = option("Variant to bundle, such as int8-percentile.", metavar="NAME")
    measure: bool = option(
        "Write one archive with the models of RUN, inputs, and a script that measures them on a "
        "machine without trtcal: `trtcal report RUN --measured FILE` reads what it writes."
    )
    targets: tuple[str, ...] = option(
        "Target of the run to include; may be repeated.  [default: all]",
        "--target",
        metavar="TARGET",
    )
    output: Path | None = option(
        "Folder for the bundle.  [default: bundle; of --measure measure.tar]", "-o"
    )
    key: Path | None = option(
        "Private key to sign with: PEM, EC on P-256. TRTCAL_KEY_PASSPHRASE has its passphrase."
    )
    golden: int = option("Number of golden inputs.", type=click.IntRange(8, 16), default=16)
    class_names: Path | None = option(
        "File of class names, one on each line.  [default: the names of the folders, if they are "
        "the labels]"
    )
    triton: bool = option("Add a model repository for Triton.")
    deepstream: bool = option("Add a configuration for DeepStream's nvinfer.")
    docker: bool = option("Add a Dockerfile whose container verifies the bundle before it serves.")
    redact: bool = option(f"{REDACT} Golden inputs are drawn at random.")
    despite_verdict: bool = option(
        "Bundle a variant whose verdict is not SHIP or SHIP WITH CARE; the bundle records it."
    )

    @cached_property
    def config(self) -> Config:
        """The configuration given, or the run's own: in its folder, or where it was then."""
        config = config_here(self.config_path or self._config_of_run())
        return config.trusting(self.trust, self.data)

    @property
    def is_redacted(self) -> bool:
        """Whether names and samples are left out, as the option, the configuration or the run says."""
        from trtcal.runs.redaction import is_redacted

        return self.redact or self.config.report.redact or is_redacted(self.run)

    def _config_of_run(self) -> Path | None:
        from trtcal.runs.origin import RUN_FILE, Origin

        if self.measure and not (self.run / RUN_FILE).is_file():  # of `trtcal compare`
            return None
        config = Origin.read(self.run).measured.files.get("config", "")
        return next((path for path in (self.run / FILE, Path(config)) if path.is_file()), None)

    def _run(self) -> None:
        from trtcal.documents.streams import command_line
        from trtcal.runs.bundle.building import check_place, make_bundle

        if self.measure:
            self._write_archive()
            return
        output = self.output or Path("bundle")
        check_place(output)
        bundle = make_bundle(self._request(), output)
        remark(*bundle.notes)
        self.present(_document(bundle), lambda: _show_bundle(bundle))
        if self.key is not None:
            check = command_line("bundle", "verify", output, public_key="FILE")
            remark(f"`{check}` checks the signature")
        advise(self, "bundle", "matrix", output)

    def _write_archive(self) -> None:
        """Write the archive of --measure: of all variants, or the reference and the one named."""
        from trtcal.data.drawn import drawn_like
        from trtcal.documents import digest_file
        from trtcal.extensions import MEASUREMENTS, load
        from trtcal.model.metadata import redacted_model
        from trtcal.reporting.collect import collect
        from trtcal.reporting.document import compared

        others = ("targets", "key", "class_names", "triton", "deepstream", "docker")
        if ignored := [name for name in others if getattr(self, name)]:
            option = f"--{ignored[0].replace('targets', 'target').replace('_', '-')}"
            raise InputError(f"--measure writes no bundle: {option} is not for it", "leave it out")
        comparison, models = compared(collect(self.run))
        names = [row.name for row in comparison.rows[1:]]
        if self.variant is not None and self.variant not in names:
            what = f"{self.run} has no variant {self.variant!r}"
            raise InputError(what, f"its variants: {', '.join(names)}")
        comparison = comparison.of([self.variant] if self.variant else names)
        for row in comparison.rows:
            if row.model not in models:
                what = f"the model of {row.name} is not there, or has changed since the run"
                raise InputError(what, "run it again: `trtcal run`")
        data = self.open_data(models[comparison.rows[0].model], self.config.evaluation)
        if self.is_redacted:
            models = {digest: redacted_model(model) for digest, model in models.items()}
            data = drawn_like(data, comparison.batch)
        make = load(MEASUREMENTS, "archive", "archives that measure elsewhere")
        output = self.output or Path("measure.tar")
        manifest = make(comparison.rows, models, data, comparison.batch, output)
        digest = digest_file(output)
        shown = {**manifest, "output": str(output), "digest": digest}
        self.present(shown, lambda: say_written(output, digest))

    def _request(self) -> Request:
        from trtcal.model import load_model
        from trtcal.runs.bundle.building import Request
        from trtcal.runs.bundle.signing import read_signer

        config, signer = self.config, read_signer(self.key) if self.key else None
        if self.variant is None:
            raise InputError("a bundle is of one variant", "name it: --variant NAME")
        quantized = self.run / "models" / f"{Path(self.variant).name}.onnx"
        if not quantized.is_file():
            names = sorted(path.stem for path in quantized.parent.glob("*.onnx"))
            hint = f"its variants: {', '.join(names)}"
            raise InputError(f"{self.run} has no variant {self.variant!r}", hint)
        has_model = config.model is not None and config.model.is_file()
        model = load_model(config.model if has_model and config.model else quantized)
        return Request(
            self.run,
            self.variant,
            self.open_data(model, config.evaluation),
            self.targets,
            self.golden,
            signer,
            config.images,
            self._names(),
            tuple(self._exports()),
            self.despite_verdict,
            self.is_redacted,
        )

    def _names(self) -> tuple[str, ...]:
        from trtcal.data.images import folder_names, read_names

        settings = self.config.evaluation
        source = self.data or settings.data
        if self.class_names is not None:
            return read_names(self.class_names)
        by_folder = not self.is_redacted and (self.labels or settings.labels) == "folders"
        return folder_names(source) if by_folder and source is not None else ()

    def _exports(self) -> list[Any]:
        from trtcal.extensions import EXPORTERS, load

        flags = {"triton": self.triton, "deepstream": self.deepstream, "docker": self.docker}
        return [load(EXPORTERS, name, f"bundles for {name}") for name, on in flags.items() if on]


def _document(bundle: Bundle) -> Document:
    about = bundle.manifest["predicate"]
    return {
        "output": str(bundle.folder),
        "digest": bundle.digest,
        "variant": about["variant"],
        "engines": about["engines"],
        "tolerances": about["golden"]["tolerances"],
        "notes": list(bundle.notes),
        **bundle.result.to_document(),
    }


def _show_bundle(bundle: Bundle) -> None:
    columns: Columns = {
        "engine for": "{target}",
        "product": "{product}",
        "version": "{version}",
        "MACs": lambda engine: _shares(engine["precision"]["narrow_macs_percent"]),
        "nodes lost": lambda engine: str(len(engine["precision"]["lost"])),
        "smallest driver": lambda engine: (engine["smallest_driver"] or {}).get("linux", "-"),
    }
    about = bundle.manifest["predicate"]
    print_table(about["engines"], columns, f"bundle of {about['variant']}")
    golden = about["golden"]
    allowed = ", ".join(f"{name} {value:.4g}" for name, value in golden["tolerances"].items())
    say(f"{golden['samples']} golden inputs; tolerances: {allowed}")
    say(bundle.result.verdict)
    say_written(bundle.folder, bundle.digest)


def _shares(shares: dict[str, float] | None) -> str:
    parts = [f"{share:.0f} % {name.upper()}" for name, share in (shares or {}).items()]
    return "-" if shares is None else ", ".join(parts) or "0 %"


class Verify(JsonOptions, example="trtcal bundle verify bundle --public-key public.pem --device"):
    """Check a BUNDLE: signature, digests, headers, device, then its outputs on the golden inputs.

    The status is 0 for READY, 1 for REBUILD RECOMMENDED, 2 for REFUSED. trtcal loads the engine
    only after all other checks have passed.
    """

    bundle: Path = argument()
    public_key: Path | None = option(
        f"The signer's public key, a PEM file.  [default: ${KEY_VARIABLE}]", envvar=KEY_VARIABLE
    )
    allow_unsigned: bool = option("Check the digests of a signed bundle without its signature.")
    device: bool = option("Check it against this machine: GPU, driver, version of TensorRT.")
    no_self_test: bool = option("Do not load an engine.")
    save_outputs: Path | None = option(
        "File for the outputs of the self-test; `trtcal bundle drift` reads it."
    )
    tier: str | None = option(
        "Device class that the saved outputs belong to.  [default: the device's name]"
    )

    def _run(self) -> None:
        from trtcal.runs.bundle.verifying import Options, verify

        accepted = self.public_key, self.allow_unsigned, self.device
        outputs = self.save_outputs, self.tier
        result = verify(self.bundle, Options(*accepted, not self.no_self_test, *outputs))

        def show() -> None:
            say(*(f"{check.what}: {check.state}: {check.found}" for check in result.checks))
            if not result.status:
                say(result.verdict)

        self.present(result.to_document(), show)
        if result.status:
            raise (GateFailed if result.status == 1 else InputError)(result.verdict, _hint(result))


def _hint(result: Result) -> str:
    from trtcal.runs.bundle.verifying import NO_KEY, PRIVATE

    check = next(check for check in result.checks if check.state == result.state)
    if check.found == NO_KEY:
        return f"give the signer's public key with --public-key FILE or {KEY_VARIABLE}"
    if check.found.endswith(PRIVATE):
        return "write the public key with `openssl pkey -in PRIVATE.pem -pubout -out public.pem`"
    if check.what in ("device", "version"):
        hint = "build the quantized model in model/ for this device with `trtcal build`"
        return f"{hint}; `trtcal bundle matrix` lists devices"
    if check.what == "self-test":
        return "do not serve the bundle: compare it layer by layer, and build it again"
    return "load nothing from the bundle: get the original, and the public key, from its author"


class Matrix(JsonOptions, example="trtcal bundle matrix bundle --for t4 --for orin"):
    """Show on which devices a BUNDLE loads, from descriptions of the devices, before it is shipped.

    The status is 1 if a device that --for names refuses the bundle.
    """

    bundle: Path = argument()
    devices: tuple[str, ...] = option(
        "GPU that trtcal describes, or a TOML file that describes one; may be repeated.  "
        "[default: all]",
        "--for",
        metavar="GPU|FILE",
    )

    def _run(self) -> None:
        from trtcal.evidence.gpus import find_target, target_names
        from trtcal.runs.bundle.devices import matrix

        rows = matrix(self.bundle, list(map(find_target, self.devices or target_names())))
        columns = {n: f"{{{n}}}" for n in ("device", "target", "engine", "state", "reason")}
        self.present([vars(row) for row in rows], lambda: print_table(rows, columns))
        refused = [row for row in rows if row.is_refused]
        if self.devices and refused:
            hint = f"add an engine: targets = [..., {refused[0].target!r}] under [build]"
            what = f"the bundle does not load on {refused[0].device}: {refused[0].reason}"
            raise GateFailed(what, f"{hint}, or build on the device")


add_commands(command, Make, Verify, Matrix)
