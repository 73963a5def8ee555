"""Settings that all tests share."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fedbridge",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedbridge")
