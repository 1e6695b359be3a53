import gc
import os

from hypothesis import HealthCheck, settings

# The same examples in each run, so that a red run can be repeated. `HYPOTHESIS_PROFILE=search` looks further.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=80,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", deadline=None, max_examples=3000, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_collection_finish() -> None:
    """What is loaded by now stays: `driving.drive` need not look through it after each test."""
    gc.collect()
    gc.freeze()
