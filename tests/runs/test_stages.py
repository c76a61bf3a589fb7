"""The stages of a builder are read from its verbose log, with what they changed."""

import gzip

from trtcal.wings.forensics.checkpoints import BuilderStage, builder_stages

LOG = """[11/24/2026-10:00:00] [I] [TRT] Graph construction completed in 0.0178641 seconds.
[11/24/2026-10:00:00] [V] [TRT] Original: 34 layers
[11/24/2026-10:00:00] [V] [TRT] After dead-layer removal: 34 layers
[11/24/2026-10:00:00] [V] [TRT] Running: ConvReluFusion on stem/conv
[11/24/2026-10:00:00] [V] [TRT] ConvReluFusion: Fusing stem/conv with stem/relu
[11/24/2026-10:00:00] [V] [TRT] After vertical fusions: 33 layers
[11/24/2026-10:00:01] [V] [TRT] Removing Identity_5
[11/24/2026-10:00:01] [V] [TRT] After final dead-layer removal: 32 layers
[11/24/2026-10:00:01] [V] [TRT] Skipped printing memory information for 0 layers with 0 memory
"""


def test_stages_have_their_layers_and_what_they_changed(tmp_path):
    (tmp_path / "build.log").write_text(LOG)
    assert builder_stages(tmp_path / "build.log") == (
        BuilderStage("Original", 34, ()),
        BuilderStage("dead-layer removal", 34, ()),
        BuilderStage("vertical fusions", 33, ("ConvReluFusion: Fusing stem/conv with stem/relu",)),
        BuilderStage("final dead-layer removal", 32, ("Removing Identity_5",)),
    )


def test_times_and_prefixes_are_no_part_of_a_stage(tmp_path):
    (tmp_path / "one.log").write_text(LOG)
    bare = "\n".join(line.partition("[TRT] ")[2] for line in LOG.splitlines())
    (tmp_path / "other.log.gz").write_bytes(gzip.compress(bare.encode()))
    one, other = (builder_stages(tmp_path / name) for name in ("one.log", "other.log.gz"))
    assert one == other


def test_a_log_without_stages_has_none(tmp_path):
    (tmp_path / "build.log").write_text("[I] nothing of that kind\n")
    assert builder_stages(tmp_path / "build.log") == ()
