"""On a local Ray cluster of two nodes."""

import contextlib

import pytest

from tests.fixtures.fails import fails
from trtcal.calibration import ObserveOptions, observe
from trtcal.errors import BackendError, InputError
from trtcal.wings.cluster.ray import RayWorker

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = [
    pytest.mark.slow,
    # Ray's own, in its start and stop.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]

COUNT = 150


@pytest.fixture
def cluster(monkeypatch):
    made = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    with contextlib.suppress(Exception):
        ray.shutdown()
    made.shutdown()


def test_a_cluster_of_two_nodes_gives_the_same_though_one_is_lost(scene, cluster, monkeypatch):
    expected = observe(*scene, ObserveOptions(threads=1)).digest
    assert observe(*scene, ObserveOptions(batch=7, cluster="ray")).digest == expected

    used = []
    submit, ready = RayWorker.submit, RayWorker.ready.fget

    def submit_and_remember(self, task):
        used.append(self)
        return submit(self, task)

    def ready_when_started(self):
        """The first two actors are waited for: on a busy machine one of them could do all the work."""
        return ready(self) if len(used) > 1 else self.started.result(timeout=600)

    monkeypatch.setattr(RayWorker, "submit", submit_and_remember)
    monkeypatch.setattr(RayWorker, "ready", property(ready_when_started))
    second = next(node for node in cluster.list_all_nodes() if not node.head)
    removed = []

    def lose_a_node(done):
        if not removed:
            removed.append(second)
            cluster.remove_node(second, allow_graceful=False)

    assert observe(*scene, ObserveOptions(batch=1, cluster="ray"), lose_a_node).digest == expected
    assert removed
    assert len(set(map(id, used))) > 1


def test_more_workers_than_cores_are_refused(scene, cluster):
    with fails(InputError, "2 workers", "1 threads", "3"):
        observe(*scene, ObserveOptions(cluster="ray", workers=3))


def test_errors_of_workers_are_the_users(scene, cluster, tmp_path):
    (tmp_path / "data.npz").unlink()
    with fails(InputError, "data.npz"):
        observe(*scene, ObserveOptions(cluster="ray"))


def test_no_cluster_is_a_clear_error(scene, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with fails(BackendError, "Ray"):
        observe(*scene, ObserveOptions(cluster="ray"))
